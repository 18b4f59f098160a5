"""`asyncio.run` ends by cancelling every task: at whichever turn it comes, also before a task has run for the first
time, requests, their spans and work in the background come to their ends."""

import asyncio
import gc
import threading

import pytest

from limelight import Engine
from limelight.engine import BackgroundTask, EngineState
from tests.faults.test_every_await import LONG, OpenSpans, traced_engine

NUM_TURNS = 12


async def begin(engine: Engine, background: list[BackgroundTask]) -> None:
    """Something new in each turn."""
    async with asyncio.TaskGroup() as group:
        while True:
            background.append(engine.run_in_background(asyncio.Event().wait, "work"))
            group.create_task(engine.generate("a request", LONG))
            await asyncio.sleep(0)


async def live(engine: Engine, background: list[BackgroundTask], num_turns: int) -> asyncio.Task[None]:
    """So many turns, and not to the engine's end."""
    await engine.start()
    beginning = asyncio.ensure_future(begin(engine, background))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    return beginning


# A task group of anyio leaves the coroutine of a task behind that is cancelled before it has run.
@pytest.mark.filterwarnings("ignore:coroutine '.*_run' was never awaited:RuntimeWarning")
@pytest.mark.parametrize("num_turns", range(NUM_TURNS))
def test_a_loop_that_ends_at_any_turn_ends_everything(num_turns: int) -> None:
    spans = OpenSpans()
    engine = traced_engine(spans)
    background: list[BackgroundTask] = []
    beginning = asyncio.run(live(engine, background, num_turns))
    gc.collect()
    assert beginning.cancelled()
    assert engine.state is EngineState.STOPPED
    assert engine.failure is None
    assert not engine.telemetry.live
    assert spans.num_open == 0
    assert all(task.done for task in background)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("limelight")] == []
