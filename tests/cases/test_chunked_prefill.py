"""Long prompts beside running answers, counted in steps: every step carries each running decode.

A step's length is bounded by its token budget, so an answer's longest gap is that of one such step.
"""

import anyio
import pytest

from limelight.generation import SamplingParams
from tests.cases.small_engines import default_engine, idle, ids, one_by_one, until

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.usefixtures("default_model")]

BUDGET = 64


@pytest.mark.slow
async def test_a_long_prompt_and_then_a_flow_of_them_never_hold_up_a_running_answer():
    answer = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    asks = [(ids(6), answer), (ids(400, seed=1), one), *((ids(100, seed=number), one) for number in range(2, 6))]
    async with default_engine(enable_prefix_caching=False) as engine:
        expected = await one_by_one(engine, asks)
    steps = []
    results = {}
    async with default_engine(max_num_batched_tokens=BUDGET, before_step=steps.append) as engine:

        async def ask(number):
            results[number] = await engine.generate(*asks[number])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 0)
            await until(lambda: len(steps) >= 2)
            tasks.start_soon(ask, 1)
            for number in range(2, 6):
                seen = len(steps)
                await until(lambda seen=seen: len(steps) > seen + 1)
                tasks.start_soon(ask, number)
        assert engine.statistics().num_preemptions == 0
        assert idle(engine)
    for number, alone in enumerate(expected):
        assert results[number].outputs[0].token_ids == alone.outputs[0].token_ids
    seat = steps[0].chunks[0].seat
    prefills = [number for number, step in enumerate(steps) if any(chunk.num_tokens > 1 for chunk in step.chunks)]
    assert len(prefills) > 400 // BUDGET, "the prompts were cut"
    assert all(sum(chunk.num_tokens for chunk in step.chunks) <= BUDGET for step in steps)
    # The answer runs in the first 24 steps, a token in each, whatever is prefilled beside it.
    for number, step in enumerate(steps[1:24], start=1):
        [chunk] = [chunk for chunk in step.chunks if chunk.seat == seat]
        assert (chunk.num_tokens, chunk.sample, chunk.start) == (1, True, 6 + number - 1)
    assert sum(number < 24 for number in prefills) > 8, "most of it happened while the answer ran"


async def test_short_prompts_behind_a_long_one_do_not_wait_for_its_end():
    long, short = SamplingParams(temperature=0, max_tokens=1), SamplingParams(temperature=0, max_tokens=3)
    finished = []
    async with default_engine(max_num_batched_tokens=BUDGET) as engine:

        async def ask(name, prompt, sampling):
            await engine.generate(prompt, sampling)
            finished.append(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "long", ids(500, seed=1), long)
            await until(lambda: engine.statistics().num_running == 1)
            tasks.start_soon(ask, "short", ids(10, seed=2), short)
    assert finished == ["short", "long"]
