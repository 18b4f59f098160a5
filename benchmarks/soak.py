"""Minutes of mixed load beyond what a server can do, and whether it keeps its promises.

    python -m benchmarks.soak --minutes 10                 the default model
    python -m benchmarks.soak --minutes 2 --scripted 5     a model that computes nothing, 5 ms a step

A real `limelight serve` gets streams, answers in one piece, cut connections, slow readers, long prompts, structured
outputs, streams that are resumed, responses in the background, messages, embeddings and deadlines, with several keys.
First as many at once as it runs, which says how many requests a second it can answer; then 1.5 times as many, as they
come. Every request must have one well-formed ending, memory must stay flat after the first minute, nothing may be left
at the end, and SIGTERM beside running streams must end the process with 0. Anything else is listed, and the exit code
is 1.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak_requests import PATIENCE_SECONDS, Client, Violation
from benchmarks.soak_server import Sample, SoakServer

KEYS = {"ada": "soak-ada", "bob": "soak-bob", "eve": "soak-eve"}
SAMPLE_SECONDS = 2.0
WARM_SECONDS = 60.0
"""Memory may grow for so long: pages are written for the first time, caches fill."""
SETTLE_SECONDS = 40.0
DRAIN_SECONDS = 20
AT_SIGTERM = ("stream", "whole", "slow reader", "long prompt", "messages")
"""Those that need one connection: new ones are refused then."""
SERVE = [
    *(
        "--max-num-requests",
        "96",
        "--max-num-seqs",
        "32",
        "--kv-cache-memory",
        "256MiB",
        "--drain-timeout",
        str(DRAIN_SECONDS),
    ),
    *("--resume-keep", "15", "--timeout-keep-alive", "15", "--log-level", "warning"),
]
"""Limits that the load meets, and nothing kept for longer than a moment."""


@dataclass
class Tally:
    """What became of the requests.

    Attributes:
        endings: by kind and word.
        violations: what was not as it should be, with how often.
        slowest_seconds: of a request that had an ending.
    """

    endings: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    num_asked: int = 0
    slowest_seconds: float = 0.0

    @property
    def num_answered(self) -> int:
        """Those that the server worked on."""
        return sum(count for (_, word), count in self.endings.items() if word not in ("refused", "too late"))

    async def ask(self, client: Client, kind: str) -> None:
        """Ask once, and count the ending."""
        self.num_asked += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                self.endings[kind, await client.ask(kind)] += 1
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
        except Violation as error:
            self.violations[f"{kind}: {error}"] += 1
        except TimeoutError:
            self.violations[f"{kind}: no ending within {PATIENCE_SECONDS:g} s"] += 1


async def closed_loop(client: Client, num_clients: int, seconds: float, tally: Tally) -> float:
    """So many clients, each with one request at a time; requests answered per second, in the second half of that."""
    end = time.monotonic() + seconds

    async def one() -> None:
        while time.monotonic() < end:
            await tally.ask(client, client.pick())

    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(one())
        await asyncio.sleep(seconds / 2)
        before, began = tally.num_answered, time.monotonic()
        await asyncio.sleep(seconds / 2)
        rate = (tally.num_answered - before) / (time.monotonic() - began)
    return max(rate, 0.1)


async def open_loop(client: Client, rate: float, seconds: float, chance: random.Random, tally: Tally) -> None:
    """Requests that come when they come, `rate` a second in the mean, and what becomes of each."""
    began = due = time.monotonic()
    async with asyncio.TaskGroup() as group:
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(tally.ask(client, client.pick()))
            due += chance.expovariate(rate)


async def watch(server: SoakServer, samples: list[Sample]) -> None:
    """Sample the process until cancelled."""
    while True:
        samples.append(server.sample())
        await asyncio.sleep(SAMPLE_SECONDS)


async def settle(server: SoakServer, descriptors: Counter[str]) -> list[str]:
    """What is left some time after the last request."""
    left: list[str] = []
    for _ in range(int(SETTLE_SECONDS)):
        gauges = await asyncio.to_thread(server.gauges)
        live = (await asyncio.to_thread(server.get, "/v1/requests"))["data"]
        left = [f"{name} is {value:g}" for name, value in gauges.items() if value]
        left += [f"{len(live)} requests are listed as live"] if live else []
        await asyncio.sleep(1)
        left += [f"left open: {count} x {name}" for name, count in (server.descriptors() - descriptors).items()]
        if not left:
            break
    return left


def growth(samples: Sequence[Sample]) -> float:
    """Bytes a minute by which resident memory grows, from the median of all slopes (Theil and Sen)."""
    points = [(sample.seconds / 60, sample.resident_bytes) for sample in samples][-400:]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(points)
        for later in points[index + 1 :]
    ]
    return statistics.median(slopes) if slopes else 0.0


async def soak(options: argparse.Namespace) -> dict[str, Any]:
    """The whole run; its figures."""
    chance = random.Random(options.seed)
    began = time.monotonic()
    server = await asyncio.to_thread(SoakServer, [*SERVE, *options.serve], KEYS, options.scripted)
    client = Client(server.url, server.model, list(KEYS.values()), chance)
    problems: Counter[str] = Counter()
    calibration, tally, last = Tally(), Tally(), Tally()
    samples: list[Sample] = []
    try:
        await closed_loop(client, 2, 1.0, Tally())
        await asyncio.sleep(1)
        descriptors = server.descriptors()
        watching = asyncio.create_task(watch(server, samples))
        capacity = await closed_loop(client, options.clients, options.calibrate, calibration)
        load_began = server.sample().seconds
        await open_loop(client, options.load * capacity, 60 * options.minutes, chance, tally)
        watching.cancel()
        problems.update(await settle(server, descriptors))
        ending = [asyncio.create_task(last.ask(client, client.pick(AT_SIGTERM))) for _ in range(16)]
        await asyncio.sleep(0.5)
        server.terminate()
        await asyncio.gather(*ending)
        code = await asyncio.to_thread(server.wait, DRAIN_SECONDS + 20.0)
    finally:
        server.wait(0)
        await client.close()
    if code != 0:
        problems[f"the process ended with {code} after SIGTERM"] += 1
    for line in server.faults():
        problems[f"log: {line[:300]}"] += 1
    warm = [sample for sample in samples if sample.seconds > load_began + min(WARM_SECONDS, 30 * options.minutes)]
    grows = growth(warm)
    if grows > options.max_growth * 2**20:
        problems[f"memory grows by {grows / 2**20:.1f} MiB a minute, the limit is {options.max_growth:g}"] += 1
    for asked in (calibration, tally, last):
        problems.update(asked.violations)
        if asked.num_asked != sum(asked.endings.values()) + sum(asked.violations.values()):
            problems["requests without an ending"] += 1
    return {
        "model": server.model,
        "seconds": time.monotonic() - began,
        "capacity_requests_per_second": capacity,
        "offered_requests_per_second": tally.num_asked / (60 * options.minutes),
        "num_requests": tally.num_asked,
        "num_answered": tally.num_answered,
        "slowest_seconds": tally.slowest_seconds,
        "endings": {f"{kind}: {word}": count for (kind, word), count in sorted(tally.endings.items())},
        "at_sigterm": dict(Counter(word for (_, word), count in last.endings.items() for _ in range(count))),
        "exit_code": code,
        "resident_mib": [round(sample.resident_bytes / 2**20, 1) for sample in samples],
        "growth_mib_per_minute": grows / 2**20,
        "max_descriptors": max(sample.num_descriptors for sample in samples),
        "max_threads": max(sample.num_threads for sample in samples),
        "violations": dict(problems),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures for people, in Markdown."""
    words = ("whole", "cut", "refused", "too late", "ended by the server")
    kinds = list(dict.fromkeys(name.partition(": ")[0] for name in figures["endings"]))
    rows = [f"| | {' | '.join(words)} |", f"|---|{'---|' * len(words)}"]
    for kind in kinds:
        counts = [figures["endings"].get(f"{kind}: {word}", 0) for word in words]
        rows.append(f"| {kind} | {' | '.join(f'{count:,}' if count else '' for count in counts)} |")
    memory = figures["resident_mib"]
    text = (
        f"{figures['num_requests']:,} requests at {figures['offered_requests_per_second']:.1f} a second; it can answer "
        f"{figures['capacity_requests_per_second']:.1f}. The slowest took {figures['slowest_seconds']:.0f} s. "
        f"Resident memory {memory[0]:.0f} MiB at the beginning, at most "
        f"{max(memory):.0f}, at the end {memory[-1]:.0f}; after the first minute it grows by "
        f"{figures['growth_mib_per_minute']:.2f} MiB a minute. At most {figures['max_descriptors']} descriptors and "
        f"{figures['max_threads']} threads. SIGTERM beside 16 requests: {figures['at_sigterm']}, exit code "
        f"{figures['exit_code']}."
    )
    rows += ["", text, f"Violations: {sum(figures['violations'].values()) or 'none'}"]
    rows += [f"- {count} x {what}" for what, count in figures["violations"].items()]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--scripted", type=float, metavar="MS", help="a scripted model with steps of so long")
    parser.add_argument("--load", type=float, default=1.5, help="of what the server can do (default: 1.5)")
    parser.add_argument("--calibrate", type=float, default=30.0, metavar="SECONDS", help="to find out what that is")
    parser.add_argument("--clients", type=int, default=80, help="at once, meanwhile")
    parser.add_argument(
        "--max-growth", type=float, default=4.0, metavar="MIB", help="memory a minute that may be added"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="more options of limelight serve, after --")
    options = parser.parse_args(arguments)
    figures = asyncio.run(soak(options))
    print(table(figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
