"""What it costs to observe every request: output tokens/s and processor time of servers side by side, over HTTP.

    python -m benchmarks.tracing_cost                  a model that computes nothing: the worst case
    python -m benchmarks.tracing_cost --model default  a real one: what users see

Five servers run at once, each in a process of its own, and take turns with the same load, in another order every round:

    bare        without timelines, steps and counters: what there would be if nothing could be observed
    bare again  the same a second time: how far apart two equal servers are here
    off         as `limelight serve` without a collector
    on          every request traced, one step in 64, exported to a receiver in another process
    dead        the same with a collector that refuses connections

Ratios are to `bare` in the same round: their median, and twice its standard error as their spread tells it.
"""

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.sides import ROOT, SideFailed, end, free_port
from limelight.bench.request_result import RequestResult
from limelight.bench.serving import ServingLoad, drive
from limelight.bench.target import Target, chosen_model
from limelight.cli.event_loop import run

TARGETS = {"off": 0.01, "on": 0.03}
"""Shares of the output tokens/s of `bare` that may be lost."""
ARMS = ("bare again", "off", "on", "dead")
EXPORT_SECONDS = 30.0
MEDIAN_ERROR = 1.4826 * 1.2533
"""Of a normal distribution: its standard deviation by its median deviation, times a median's error by a mean's."""


class Turn(NamedTuple):
    """One load on one server.

    Attributes:
        cpu_us, loop_us: processor time for an output token, of the process and of the loop's thread alone.
        longest_gap_ms: between two events with tokens of one stream.
    """

    tokens_per_second: float
    cpu_us: float
    loop_us: float
    longest_gap_ms: float


class Ratio(NamedTuple):
    """A figure of one server over that of another, and twice the standard error of that."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float], baseline: Sequence[float]) -> "Ratio":
        """The median of the ratios turn by turn; a few turns that others disturbed do not move it."""
        found = [value / base for value, base in zip(values, baseline, strict=True)]
        median = statistics.median(found)
        deviation = statistics.median([abs(ratio - median) for ratio in found])
        return cls(median, 2 * MEDIAN_ERROR * deviation / math.sqrt(len(found)))

    def __str__(self) -> str:
        return f"{self.value:.3f} +-{self.error:.3f}"


class ObservedServer:
    """A server in a process of its own, by `observed_server.py`; several start at once, so each is waited for."""

    def __init__(self, options: Sequence[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.observed_server", *options]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT
        )

    def wait(self) -> None:
        """Until it serves.

        Raises:
            SideFailed: it does not start.
        """
        self._target = Target.parse(self._line().rpartition(" ")[2].strip())
        self._model = chosen_model(self._target, None)

    def take(self, load: ServingLoad) -> Turn:
        """Serve a load.

        Raises:
            SideFailed: a request failed, or the server has ended.
        """
        before = self._times()
        results, seconds = run(drive(self._target, self._model, load, lambda _: None))
        after = self._times()
        _check(results)
        tokens = sum(result.num_output_tokens for result in results)
        return Turn(
            tokens_per_second=tokens / seconds,
            cpu_us=1e6 * (after["process_seconds"] - before["process_seconds"]) / tokens,
            loop_us=1e6 * (after["loop_seconds"] - before["loop_seconds"]) / tokens,
            longest_gap_ms=1000 * max(max(result.gaps_seconds, default=0.0) for result in results),
        )

    def close(self) -> None:
        """End it."""
        end(self._process)
        self._log.close()

    def _times(self) -> dict[str, float]:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        times: dict[str, float] = json.loads(self._line())
        return times

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SideFailed(f"a server has ended: {self._log.read()[-2000:].decode(errors='replace')}")
        return line


def _check(results: Sequence[RequestResult]) -> None:
    for result in results:
        if result.error is not None:
            raise SideFailed(f"a request failed: {result.error}")


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    """The address of an `otlp_receiver.py` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.otlp_receiver"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        end(process)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; the first, in which everything is imported and allocated, does not count."""
    load = ServingLoad(
        prompt_kind="tokens" if options.model else "words",
        num_prompts=options.streams * options.repeat,
        concurrency=options.streams,
        input_len=options.input_len,
        output_len=options.output_len,
    )
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(receiver())
        nobody = f"http://127.0.0.1:{free_port()}"
        every = {
            "bare": arguments(options, "--bare"),
            "bare again": arguments(options, "--bare"),
            "off": arguments(options),
            "on": arguments(options, endpoint=collector),
            "dead": arguments(options, endpoint=nobody),
        }
        arms = {name: every[name] for name in every if name in ("bare", *options.arms)}
        servers = {name: stack.enter_context(contextlib.closing(ObservedServer(arms[name]))) for name in arms}
        for server in servers.values():
            server.wait()
        turns: dict[str, list[Turn]] = {name: [] for name in arms}
        order = list(arms)
        for number in range(options.rounds + 1):
            for name in order:
                turn = servers[name].take(load)
                if number:
                    turns[name].append(turn)
            order = [*order[2:], *order[:2]]
        counts = exported(collector, load.num_prompts * (options.rounds + 1)) if "on" in arms else {}
    return {
        "streams": options.streams,
        "output_len": options.output_len,
        "turns": {name: [turn._asdict() for turn in of_arm] for name, of_arm in turns.items()},
        "ratios": {name: ratios(of_arm, turns["bare"]) for name, of_arm in turns.items() if name != "bare"},
        "exported_spans": counts,
    }


def arguments(options: argparse.Namespace, *own: str, endpoint: str | None = None) -> list[str]:
    """Of `observed_server.py`."""
    serve = ["--max-num-seqs", str(options.streams)]
    if endpoint is not None:
        serve += ["--otlp-endpoint", endpoint]
    if options.model is None:
        return [*own, "--step-ms", str(options.step_ms), "--", *serve]
    return [*own, "--", *([] if options.model == "default" else [options.model]), *serve]


def ratios(turns: Sequence[Turn], baseline: Sequence[Turn]) -> dict[str, Ratio]:
    """By the name of the figure."""
    return {
        name: Ratio.of([getattr(turn, name) for turn in turns], [getattr(turn, name) for turn in baseline])
        for name in ("tokens_per_second", "cpu_us", "loop_us")
    }


def exported(collector: str, num_requests: int) -> dict[str, int]:
    """Spans that the receiver has, by the first word of their name, once those of all requests are there.

    Raises:
        SideFailed: they do not come.
    """
    until = time.monotonic() + EXPORT_SECONDS
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{collector}/counts") as response:
            counts: dict[str, int] = json.load(response)
        if counts.get("text_completion", 0) >= num_requests:
            return counts
        time.sleep(0.2)
    raise SideFailed(f"the receiver did not get the spans of {num_requests} requests")


def report(measured: dict[str, Any]) -> str:
    """The table, what the targets say, and what was exported."""
    headings = ("tokens/s", "CPU us/token", "loop us/token", "least loop us", "longest gap ms")
    lines = [f"{'':<12}" + "".join(f"{heading:>16}" for heading in headings) + "   to bare:"]
    for name, turns in measured["turns"].items():
        rate, cpu, loop = (statistics.median(turn[figure] for turn in turns) for figure in Turn._fields[:3])
        least, longest = min(turn["loop_us"] for turn in turns), max(turn["longest_gap_ms"] for turn in turns)
        ratios = "   ".join(f"{figure} {ratio}" for figure, ratio in measured["ratios"].get(name, {}).items())
        lines.append(f"{name:<12}{rate:>16,.0f}{cpu:>16.1f}{loop:>16.1f}{least:>16.1f}{longest:>16.1f}   {ratios}")
    for name, target in TARGETS.items():
        if name not in measured["ratios"]:
            continue
        ratio = measured["ratios"][name]["tokens_per_second"]
        lines.append(
            f"{name} costs {100 * (1 - ratio.value):.1f} % +-{100 * ratio.error:.1f} of output tokens/s; "
            f"less than {100 * target:.0f} % is the target"
        )
    spans = ", ".join(f"{count} {name}" for name, count in sorted(measured["exported_spans"].items()))
    return "\n".join([*lines, f"spans received from on: {spans}"])


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="MODEL", help='a real one, "default" for the default model')
    parser.add_argument("--step-ms", type=float, default=1.0, metavar="MS", help="how long a step takes without one")
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="that run at once")
    parser.add_argument("--input-len", type=int, default=16, metavar="N", help="tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=128, metavar="N", help="tokens of a stream")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="streams after one another in each place")
    parser.add_argument(
        "--arms", nargs="*", choices=ARMS, default=ARMS, metavar="ARM", help=f"beside bare: {', '.join(ARMS)}"
    )
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="turns of each server that count")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all turns")
    options = parser.parse_args(given)
    measured = measure(options)
    print(report(measured))
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
