"""Adapters at random: loaded, unloaded, given up and failing while requests run, leave and fail, and the engine stops.

Afterwards nothing is held: no adapter, page, seat or thread.
"""

import asyncio
import json
import random
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from limelight.engine import Engine
from limelight.errors import EngineNotRunning, InvalidRequest, ModelNotFound, OutOfMemory, StepFailure
from limelight.generation import SamplingParams
from limelight.testing import babble, scripted_model
from limelight.testing.adapters import ScriptedAdapters
from limelight.testing.executor import ScriptedExecutor

pytestmark = pytest.mark.anyio

NUM_SCHEDULES = 30  # 500 have been run; a failure names its seed
NAMES = ("one", "two", "three")


class FailingAdapters(ScriptedAdapters):
    """Fails when it reads and when it puts, sometimes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def read(self, path, report):
        self._fail()
        return super().read(path, report)

    def put(self, adapter, weights):
        self._fail()
        super().put(adapter, weights)

    def _fail(self):
        if self._chance.random() < 0.1:
            raise OutOfMemory("no memory for this one")


def failing_engine(seed, chance):
    steps = random.Random(seed)

    def before_step(step):
        if steps.random() < 0.05:
            raise ValueError("this step fails")

    load_scripted = scripted_model(babble, num_pages=chance.choice((30, 60)), before_step=before_step)

    def load(config, report):
        model = load_scripted(config, report)
        assert isinstance(model.executor, ScriptedExecutor)
        model.executor.adapters = FailingAdapters(seed)
        return msgspec.structs.replace(model, adapters=model.executor.adapters)

    return Engine(
        "scripted",
        loader=load,
        max_loras=chance.choice((1, 2, 3)),
        max_num_seqs=chance.choice((1, 2, 5)),
        max_model_len=200,
        pipeline_depth=chance.choice((1, 2)),
        num_speculative_tokens=chance.choice((0, 4)),
    )


async def ask(engine, chance, ended):
    sampling = SamplingParams(max_tokens=chance.choice((1, 5, 30)), n=chance.choice((1, 3)), seed=1)
    patience = chance.choice((None, None, 0, 2))
    try:
        async with engine.stream("a prompt of more than a page", sampling, adapter=chance.choice((None, *NAMES))) as it:
            for _ in range(patience or 0):
                await it.next_deltas()
            if patience is None:
                await it.result()
        ended.append("ended")
    except (ModelNotFound, StepFailure, EngineNotRunning) as error:
        ended.append(type(error).__name__)


async def change(call, chance):
    """Load or unload; some give up after a few turns."""
    try:
        async with anyio.create_task_group() as group:
            if chance.random() < 0.3:
                group.start_soon(give_up, group, chance.randrange(30))
            await call()
            group.cancel_scope.cancel()
    except* (InvalidRequest, ModelNotFound, OutOfMemory, EngineNotRunning):
        pass


async def give_up(group, num_turns):
    await turns(num_turns)
    group.cancel_scope.cancel()


async def turns(number):
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


async def empty(engine):
    """Unload what is left, and wait for what was given up."""
    for adapter in engine.adapters:
        assert adapter.num_requests == 0
        await engine.unload_adapter(adapter.name)
    parts = engine._system.parts
    while parts.adapters._by_id or parts.planner.has_work:
        await anyio.lowlevel.checkpoint()
    parts.planner.check()
    statistics = engine.statistics()
    assert engine.model.adapters.loaded == {}
    assert (statistics.num_free_pages, statistics.num_free_seats) == (statistics.num_pages, statistics.num_seats)


@pytest.mark.parametrize("seed", range(NUM_SCHEDULES))
async def test_adapters_come_and_go_while_everything_else_happens(tmp_path: Path, seed: int) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4}))
    chance, ended, num_asked = random.Random(seed), [], 0
    stop_at = chance.choice((None, 20, 40))
    tasks_before = asyncio.all_tasks()
    engine = failing_engine(seed, chance)
    await engine.start()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for number in range(50):
                name, draw = chance.choice(NAMES), chance.random()
                if draw < 0.6:
                    num_asked += 1
                    group.start_soon(ask, engine, chance, ended)
                elif draw < 0.85:
                    group.start_soon(change, lambda name=name: engine.load_adapter(name, tmp_path), chance)
                else:
                    group.start_soon(change, lambda name=name: engine.unload_adapter(name), chance)
                await turns(chance.randrange(6))
                if number == stop_at:
                    group.start_soon(engine.stop)
        if stop_at is None:
            await empty(engine)
        await engine.stop()
    assert len(ended) == num_asked
    assert engine.failure is None
    assert asyncio.all_tasks() == tasks_before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("limelight")]
