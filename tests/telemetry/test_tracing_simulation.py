"""Random requests over few pages, left, cancelled, stopped and failed at random moments: every tree is sound."""

import asyncio
import random

import anyio
import pytest

from limelight.engine import Engine
from limelight.errors import LimelightError
from limelight.generation import SamplingParams
from limelight.step import Step
from tests.telemetry.traced import Traces

pytestmark = pytest.mark.anyio

NUM_REQUESTS = 24


async def some_request(engine: Engine, number: int, chance: random.Random) -> None:
    """One caller, who may lose patience in one of several ways."""
    params = SamplingParams(
        n=chance.choice((1, 1, 2, 3)),
        seed=number,
        max_tokens=chance.choice((1, 8, 60)),
        stop=chance.choice((None, "q")),
    )
    prompt = "shared beginning of two pages and more " * chance.choice((0, 1, 3)) + str(number)
    await anyio.sleep(chance.uniform(0, 0.05))
    patience = chance.choice((0.0, 0.003, 0.03, 10.0, 10.0))
    leaves = chance.random() < 0.5
    try:
        with anyio.move_on_after(patience):
            async with engine.stream(prompt, params, request_id=str(number)) as stream:
                async for _ in stream:
                    if leaves and patience < 1:
                        return
    except LimelightError:
        return


@pytest.mark.parametrize("seed", range(8))
async def test_every_request_has_a_sound_tree(seed: int) -> None:
    traces = Traces()
    chance = random.Random(seed)
    failing = {chance.randrange(5, 60)} if seed % 2 else set()

    def before_step(step: Step) -> None:
        if step.number in failing:
            raise RuntimeError("broken")

    engine = traces.engine(num_pages=16, before_step=before_step, step_seconds=0.001, trace_step_interval=4)
    await engine.start()
    tasks = [
        asyncio.create_task(some_request(engine, number, random.Random(f"{seed} {number}")))
        for number in range(NUM_REQUESTS)
    ]
    if seed >= 6:
        await anyio.sleep(0.04)
    else:
        await asyncio.wait(tasks)
    await engine.stop()
    await asyncio.gather(*tasks)
    assert not engine.telemetry.live
    roots = traces.requests
    assert {root.attributes["limelight.request.id"] for root in roots} == {
        str(number) for number in range(NUM_REQUESTS)
    }
    assert len(roots) == NUM_REQUESTS
    for root in roots:
        traces.tree(root)
    span_ids = {root.context.span_id for root in roots}
    assert all(link.context.span_id in span_ids for step in traces.named("step") for link in step.links)
