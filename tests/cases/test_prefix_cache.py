"""Shared prefixes on the default model: never a page too many, never one that is not computed, never another tenant's.

A tenant is separated by `cache_salt`, which covers every page of its prompts. The salt is the client's own word; that
keys with private caches share with nobody, whatever salt is sent, is in the tests of keys, and adapters are in those of
the engine. Time to first token is not asserted: `cached_tokens` says what was reused.
"""

import anyio
import pytest

from limelight.generation import SamplingParams
from tests.cases.small_engines import (
    PAGE_TOKENS,
    Gate,
    chat,
    completion,
    default_engine,
    idle,
    ids,
    model_client,
    one_by_one,
    together,
    until,
)
from tests.http.wire import CHAT, COMPLETIONS, error_of

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.usefixtures("default_model")]

THREE = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def tokens(generation):
    return generation.outputs[0].token_ids


async def without_cache(prompts, sampling):
    """What each prompt gives alone where nothing is ever shared."""
    async with default_engine(enable_prefix_caching=False) as engine:
        generations = await one_by_one(engine, [(prompt, sampling) for prompt in prompts])
        assert engine.statistics().prefix_hits_tokens == 0
    return [tokens(generation) for generation in generations]


@pytest.mark.slow
async def test_whole_pages_but_never_the_last_token_come_from_the_cache():
    lengths = (16, 17, 32, 33)  # on both sides of the end of a page, one and two of them
    prompts = [ids(length, seed=length) for length in lengths]
    expected = await without_cache(prompts, THREE)
    for step_budget in (512, 16):
        async with default_engine(max_num_batched_tokens=step_budget, max_num_seqs=8) as engine:
            for length, prompt, answer in zip(lengths, prompts, expected, strict=True):
                cold, warm = await one_by_one(engine, [(prompt, THREE)] * 2)
                three = await together(engine, [(prompt, THREE)] * 3)
                assert [tokens(each) for each in (cold, warm, *three)] == [answer] * 5, length
                assert cold.usage.cached_tokens == 0
                reused = (length - 1) // PAGE_TOKENS * PAGE_TOKENS
                assert [each.usage.cached_tokens for each in (warm, *three)] == [reused] * 4, length


@pytest.mark.slow
async def test_sixteen_requests_with_one_new_prefix_share_it_while_it_is_being_computed():
    prefix = ids(128, seed=3)
    prompts = [[*prefix, *ids(3, seed=100 + number)] for number in range(16)]
    sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    expected = await without_cache(prompts, sampling)
    for step_budget in (512, 64):
        steps = []
        async with default_engine(max_num_batched_tokens=step_budget, before_step=steps.append) as engine:
            generations = await together(engine, [(prompt, sampling) for prompt in prompts])
            assert idle(engine)
        assert [tokens(generation) for generation in generations] == expected
        computed = sum(chunk.num_tokens for step in steps for chunk in step.chunks)
        assert computed == 128 + 16 * (3 + 1), "the prefix is computed once"


@pytest.mark.parametrize("num_passing", [0, 1], ids=["before its first step", "half done"])
async def test_an_owner_that_leaves_takes_no_page_with_it_that_others_count_on(num_passing):
    prefix = ids(128, seed=4)
    prompts = [[*prefix, *ids(3, seed=200 + number)] for number in range(4)]
    sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    expected = await without_cache(prompts, sampling)
    gate = Gate(passing=num_passing)
    async with default_engine(max_num_batched_tokens=64, max_num_seqs=8, before_step=gate) as engine:
        results = {}

        async def ask(number):
            results[number] = tokens(await engine.generate(prompts[number], sampling))

        async with anyio.create_task_group() as tasks:
            async with engine.stream(prompts[0], sampling):
                await until(lambda: len(gate.steps) > num_passing)
                for number in range(1, 4):
                    tasks.start_soon(ask, number)
                await until(lambda: engine.statistics().num_requests == 4)
            await until(lambda: engine.statistics().num_requests == 3)
            gate.open()
        results[0] = tokens(await engine.generate(prompts[0], sampling))
        assert idle(engine)
    assert [results[number] for number in range(4)] == expected


async def test_a_salt_separates_every_page_and_an_equal_one_joins():
    prompt = "The secret of the first tenant is a long one, told here once more. " * 4
    async with default_engine() as engine, model_client(engine) as client:

        async def cached(path, body, **fields):
            response = await client.post(path, json=body(prompt, max_tokens=1, temperature=0) | fields)
            assert response.status_code == 200, response.text
            usage = response.json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

        for path, body in ((CHAT, chat), (COMPLETIONS, completion)):
            cold, num_tokens = await cached(path, body, cache_salt="one")
            whole_pages = (num_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
            assert cold == 0
            assert whole_pages > 2 * PAGE_TOKENS
            assert (await cached(path, body, cache_salt="one"))[0] == whole_pages
            assert (await cached(path, body, cache_salt="two"))[0] == 0
            assert (await cached(path, body))[0] == 0
            assert (await cached(path, body, cache_salt=None))[0] == whole_pages
            assert (await cached(path, body, cache_salt="SmolLM2-135M-Instruct"))[0] == 0
            assert error_of(await client.post(path, json=body(prompt, cache_salt="")), 400)["param"] == "cache_salt"


async def test_pages_that_were_evicted_while_a_request_waited_are_computed_again():
    """Two requests run in six pages of ten; a third waits, its prompt still cached in the others, until they grow."""
    waits = ids(33, seed=5)
    grows = SamplingParams(temperature=0, max_tokens=23, ignore_eos=True)
    [expected] = await without_cache([waits], THREE)
    async with default_engine(10, page_size=8, max_num_seqs=2) as engine:
        await engine.generate(waits, SamplingParams(temperature=0, max_tokens=1))
        assert engine.statistics().num_cached_pages == 4
        results = {}

        async def ask(name, prompt, how):
            results[name] = await engine.generate(prompt, how)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "first", ids(17, seed=6), grows)
            tasks.start_soon(ask, "second", ids(17, seed=7), grows)
            await until(lambda: engine.statistics().num_running == 2)
            assert engine.statistics().num_free_pages == 4, "the cached ones"
            tasks.start_soon(ask, "waits", waits, THREE)
            await until(lambda: engine.statistics().num_waiting == 1)
            assert engine.statistics().num_running == 2
        assert engine.statistics().num_preemptions == 0
        assert idle(engine)
    assert tokens(results["waits"]) == expected
    assert results["waits"].usage.cached_tokens == 0
