"""What the event loop costs: CPU time for a token, its lag, planning, and the device's wait from one step to the next.

    python -m benchmarks.loop --streams 64 --json loop.json

A real server over a device whose steps take a fixed time serves streams over HTTP to a client in a process of its own.
Three runs: one counts the CPU time of the loop's thread, one times the planner, one asks again and again how late the
loop is.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from limelight.actors.scheduling.planner import Planner, Progress
from limelight.cli import SWITCH_SECONDS
from limelight.cli.listening import bind
from limelight.cli.options import build_parser
from limelight.cli.serve import http_settings
from limelight.cli.server import Server
from limelight.config import EngineConfig
from limelight.engine import Engine, ModelLoader
from limelight.models.loaded_model import LoadedModel
from limelight.progress import Report
from limelight.step import Sampled, Step, StepResult
from limelight.testing import babble, scripted_model

PROBE_SECONDS = 0.002
NUM_PAGES = 16384


class Device:
    """A `StepExecutor` whose steps take a fixed time, none of it the interpreter's: all draw the same letter.

    Attributes:
        begins, ends: of each step: number of its chunks and the time.
    """

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._free_at = 0.0
        self.begins: list[tuple[int, float]] = []
        self.ends: list[float] = []

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """See `StepExecutor`."""
        now = time.perf_counter()
        self._free_at = ready_at = max(now, self._free_at) + self._step_seconds
        self.begins.append((len(step.chunks), now))
        drawn = Sampled((97 + step.number % 26,))
        result = tuple([drawn if chunk.sample else None for chunk in step.chunks])

        def wait() -> StepResult:
            time.sleep(max(ready_at - time.perf_counter(), 0.0))
            self.ends.append(time.perf_counter())
            return result

        return wait

    def close(self) -> None:
        """See `StepExecutor`."""

    def turnarounds(self, num_chunks: int) -> list[float]:
        """Seconds from the end of a step to the beginning of the next, for steps of so many sequences."""
        pairs = zip(self.ends, self.begins[1:], strict=False)
        return [begin - end for end, (chunks, begin) in pairs if chunks == num_chunks]


def timed_model(device: Device) -> ModelLoader:
    """A loader of a model whose steps `device` runs."""
    scripted = scripted_model(babble, num_pages=NUM_PAGES)

    def load(config: EngineConfig, report: Report) -> LoadedModel:
        return msgspec.structs.replace(scripted(config, lambda *_: None), executor=device)

    return load


@contextlib.contextmanager
def planning_times(num_sequences: int) -> Iterator[list[float]]:
    """Seconds from a step's result (`StepDone`) to the step planned with it, for steps of so many sequences."""
    seconds: list[float] = []
    began: list[float] = []
    complete, plan = Planner.complete, Planner.plan

    def timed_complete(self: Planner, number: int, result: StepResult) -> list[Progress]:
        began[:] = [time.perf_counter()]
        return complete(self, number, result)

    def timed_plan(self: Planner) -> Step | None:
        step = plan(self)
        if step is not None and began and len(step.chunks) == num_sequences:
            seconds.append(time.perf_counter() - began[0])
        began.clear()
        return step

    Planner.complete, Planner.plan = timed_complete, timed_plan  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Planner.complete, Planner.plan = complete, plan  # type: ignore[method-assign]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both runs."""
    device = Device(options.step_ms / 1000)
    serve = build_parser({}).parse_args(["serve", "--port", "0"])
    listener = bind(serve.host, serve.port)
    listener.listen(2 * options.streams)
    async with Engine("scripted", loader=timed_model(device), max_num_seqs=options.streams) as engine:
        server = Server(engine, http_settings(serve), listener, serve)
        running = asyncio.create_task(server.run())
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await drive(url, options, 1)  # imports, caches
            before = time.thread_time()
            driven = await drive(url, options, options.rounds)
            cpu_seconds = time.thread_time() - before
            with planning_times(options.streams) as planning:
                await drive(url, options, 1)
            lags: list[float] = []
            probe = asyncio.create_task(watch(lags))
            await drive(url, options, options.rounds)
            probe.cancel()
        finally:
            server.should_exit = True
            await running
    planning_ms = np.array(planning or [0.0]) * 1000
    turnarounds = np.array(device.turnarounds(options.streams) or [0.0]) * 1000
    lag_ms = np.array(lags) * 1000
    return {
        "streams": options.streams,
        "total_output_tokens": driven["total_output_tokens"],
        "output_throughput": driven["output_throughput"],
        "loop_us_per_token": cpu_seconds / driven["total_output_tokens"] * 1e6,
        "median_lag_ms": float(np.median(lag_ms)),
        "p99_lag_ms": float(np.percentile(lag_ms, 99)),
        "max_lag_ms": float(lag_ms.max()),
        "median_planning_ms": float(np.median(planning_ms)),
        "p99_planning_ms": float(np.percentile(planning_ms, 99)),
        "median_turnaround_ms": float(np.median(turnarounds)),
        "p99_turnaround_ms": float(np.percentile(turnarounds, 99)),
    }


async def watch(lags: list[float]) -> None:
    """Notes how much later than asked for the loop wakes a task, until cancelled."""
    for _ in itertools.count():
        asked = time.perf_counter() + PROBE_SECONDS
        await asyncio.sleep(PROBE_SECONDS)
        lags.append(max(time.perf_counter() - asked, 0.0))


async def drive(url: str, options: argparse.Namespace, rounds: int) -> dict[str, Any]:
    """`limelight bench serve` in a process of its own; its figures.

    Raises:
        RuntimeError: requests failed.
    """
    arguments = ["--base-url", url, "--prompt-kind", "words", "--input-len", "8", "--warmup", "0", "--json", "-"]
    arguments += ["--concurrency", str(options.streams), "--num-prompts", str(options.streams * rounds)]
    arguments += ["--output-len", str(options.output_len)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "limelight", "bench", "serve", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the client failed; its own words stand above")
    figures: dict[str, Any] = json.loads(out)
    if figures["failed"]:
        raise RuntimeError(f"{figures['failed']} requests failed: {figures['errors']}")
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64, metavar="N", help="sequences that run at once")
    parser.add_argument("--output-len", type=int, default=256, metavar="N", help="tokens of a stream")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="streams after one another in each place")
    parser.add_argument("--step-ms", type=float, default=10.0, metavar="MS", help="how long a step takes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args(arguments)
    try:
        import uvloop
    except ImportError:
        loop_factory = None
    else:
        loop_factory = uvloop.new_event_loop
    sys.setswitchinterval(SWITCH_SECONDS)  # as the program limelight does
    with contextlib.redirect_stdout(sys.stderr), asyncio.Runner(loop_factory=loop_factory) as runner:
        measured = runner.run(measure(options))  # the server tells its address
    for name, value in measured.items():
        print(f"{name:<24} {value:>12,.3f}" if isinstance(value, float) else f"{name:<24} {value:>12,}")
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
