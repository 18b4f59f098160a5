"""A program that lives with engines, in a process of its own: it prints, as JSON, what they changed of it.

python -m tests.embedding.lifetime traces|memory scripted|default [--cycles N] [--torch] [--uvloop]

The packages that Limelight brings along are imported first: what numpy does when it is imported (it adds filters of
warnings, and OpenBLAS a thread) it does in every program.
"""

import argparse
import asyncio
import gc
import importlib
import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.embedding.snapshot import Snapshot, differences, snapshot, without_what_is_ours

if TYPE_CHECKING:
    from limelight import Engine

SETTLING_SECONDS = 60
"""A thread that Python has joined may be known to the system for a moment more, longer on a busy machine."""


def main() -> None:
    """Print what is different, by moment and name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("look_at", choices=["traces", "memory"])
    parser.add_argument("model", choices=["scripted", "default"])
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--torch", action="store_true", help="on torch's operations, beside a host that uses torch")
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    for name in ("numpy", "torch") if options.torch else ("numpy",):
        importlib.import_module(name)
    factory = importlib.import_module("uvloop").new_event_loop if options.uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop()  # the first loop of uvloop opens a pipe for the whole process
    before = snapshot()
    importlib.import_module("limelight").__all__  # noqa: B018 - importing is what is looked at
    for name in ("limelight.engine", "limelight.http.app", "limelight.llm", "limelight.testing"):
        importlib.import_module(name)
    imported = differences(before, snapshot())
    look = _traces if options.look_at == "traces" else partial(_memory, traced=options.model == "scripted")
    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(look(_maker(options.model, options.torch), options.cycles))
    if options.look_at == "traces":
        found |= {"import": imported, "exit": differences(before, snapshot())}
    json.dump({moment: changed for moment, changed in found.items() if changed}, sys.stdout)


def _maker(model: str, on_torch: bool) -> "Callable[[], Engine]":
    from limelight import Engine
    from limelight.testing import scripted_engine

    if model == "scripted":
        return lambda: scripted_engine(step_seconds=0.0005)
    return lambda: Engine(cpu_kernels="reference" if on_torch else "auto", max_num_seqs=4)


async def _use(engine: "Engine") -> None:
    """A little of everything: whole, streamed, left in the middle, cancelled, constrained, refused."""
    from limelight import LimelightError, SamplingParams, StructuredOutputsParams

    short = SamplingParams(max_tokens=4, seed=1)
    await engine.generate("hello", short)
    await engine.chat([{"role": "user", "content": "hello"}], short)
    async with engine.stream("hello", SamplingParams(max_tokens=None)) as stream:
        await anext(stream)
    waiting = asyncio.create_task(engine.generate("hello", SamplingParams(max_tokens=None)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    bounded = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
    await engine.generate("hello", bounded)
    try:
        await engine.generate("", short)
    except LimelightError as error:
        del error


async def _traces(make: "Callable[[], Engine]", cycles: int) -> dict[str, Any]:
    """What is different inside and after, one engine after the other."""
    found: dict[str, Any] = {}
    for number in range(cycles):
        before = snapshot()
        async with make() as engine:
            await _use(engine)
            inside = snapshot()
            found[f"inside {number}"] = differences(before | {"native threads": None}, without_what_is_ours(inside))
        del engine
        found[f"after {number}"] = await _after(before)
    return found


async def _after(before: Snapshot) -> dict[str, Any]:
    """What is different, once threads that have ended are gone for the system, too."""
    deadline = time.monotonic() + SETTLING_SECONDS
    while (found := differences(before, snapshot())).keys() == {"native threads"} and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return found


async def _memory(make: "Callable[[], Engine]", cycles: int, *, traced: bool) -> dict[str, Any]:
    """Sizes after the first cycles and after many more, and while an engine is open."""
    for _ in range(max(1, cycles // 10)):
        await _cycle(make)
    taken: list[dict[str, int]] = []

    async def look() -> None:
        taken.append(_sizes())

    if traced:  # which makes loading weights several times slower
        tracemalloc.start()
    await _cycle(make, look)
    began = _sizes()
    for _ in range(cycles):
        await _cycle(make)
    return {"open": taken[0], "began": began, "ended": _sizes()}


async def _cycle(make: "Callable[[], Engine]", inside: Callable[[], Awaitable[None]] | None = None) -> None:
    async with make() as engine:
        await _use(engine)
        if inside is not None:
            await inside()


def _sizes() -> dict[str, int]:
    gc.collect()
    return {
        "bytes": _resident_bytes(),
        "threads": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "objects": len(gc.get_objects()),
        "traced bytes": tracemalloc.get_traced_memory()[0],
    }


def _resident_bytes() -> int:
    """Memory of the process that belongs to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


if __name__ == "__main__":
    main()
