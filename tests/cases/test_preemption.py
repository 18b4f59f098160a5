"""Requests that lose their pages in mid-answer and go on later: nothing of the answer may tell.

Log-probabilities are compared to 0.001: what was computed token by token is computed again as one chunk, with sums in
another order. Outputs of a given form are in `test_structured_output.py`.
"""

from collections import Counter

import anyio
import msgspec
import pytest

from limelight.generation import FinishReason, SamplingParams
from tests.cases.small_engines import default_engine, deltas_of, idle, ids, one_by_one, together, until

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.usefixtures("default_model")]

NUM_TOKENS = 40
KINDS = {
    "greedy": SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2),
    "seeded": SamplingParams(temperature=0.9, seed=5, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0),
    "penalised": SamplingParams(
        temperature=0,
        frequency_penalty=1,
        presence_penalty=0.5,
        repetition_penalty=1.2,
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
    ),
    "held to a minimum": SamplingParams(temperature=0, min_tokens=NUM_TOKENS, max_tokens=NUM_TOKENS),
}
PROMPT = "Here is a list of the animals of the forest: the fox, the"


def tight_engine(num_pages=8, **options):
    """Room for about one and a half of the sequences here."""
    return default_engine(num_pages, max_num_seqs=4, max_model_len=96, **options)


async def solo(asks):
    async with default_engine(enable_prefix_caching=False) as engine:
        generations = await one_by_one(engine, asks)
        assert engine.statistics().num_preemptions == 0
    return generations


def logprobs_of(output):
    return None if output.logprobs is None else [entry.logprob for entry in output.logprobs]


def assert_same(generation, alone):
    for output, expected in zip(generation.outputs, alone.outputs, strict=True):
        assert output.token_ids == expected.token_ids
        assert output.text == expected.text
        assert output.finish_reason == expected.finish_reason
        if expected.logprobs is not None:
            assert logprobs_of(output) == pytest.approx(logprobs_of(expected), abs=1e-3)
            for one, other in zip(output.logprobs, expected.logprobs, strict=True):
                assert (one.token_id, one.bytes) == (other.token_id, other.bytes)
                assert len(one.top) == len(other.top)
    assert generation.usage.completion_tokens == alone.usage.completion_tokens
    assert generation.usage.prompt_tokens == alone.usage.prompt_tokens


@pytest.mark.slow
async def test_every_kind_of_answer_survives_preemption_at_both_pipeline_depths():
    """The latest arrivals lose their pages, so each kind comes late once. Prompts are told apart by their length."""
    asks = [(ids(12 + number, seed=number), sampling) for number, sampling in enumerate(KINDS.values())]
    expected = await solo(asks)
    sat_down = Counter()

    def watch(step):
        sat_down.update(taken.num_prompt_tokens for taken in step.taken)

    for depth, order in ((1, 1), (2, -1)):
        async with tight_engine(10, pipeline_depth=depth, before_step=watch) as engine:
            generations = await together(engine, asks[::order])
            assert engine.statistics().num_preemptions > 1
            assert idle(engine)
        for generation, alone in zip(generations[::order], expected, strict=True):
            assert_same(generation, alone)
    assert min(sat_down[len(prompt)] for prompt, _ in asks) > 2, "each kind was preempted"


async def test_a_stream_repeats_and_misses_nothing_across_a_preemption():
    sampling = KINDS["seeded"]
    [alone] = await solo([(PROMPT, sampling)])
    resumed = []

    def watch(step):
        resumed.extend(chunk.start + chunk.num_tokens for chunk in step.chunks if chunk.num_tokens > 20)

    async with tight_engine(before_step=watch) as engine:
        deltas = {}

        async def read(name, prompt, how):
            deltas[name] = await deltas_of(engine.stream(prompt, how))

        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(read, number, ids(20, seed=number), KINDS["greedy"])
            tasks.start_soon(read, "watched", PROMPT, sampling)
        assert engine.statistics().num_preemptions > 0
    watched = deltas["watched"]
    assert resumed, "a sequence came back with more than its prompt"
    assert "".join(delta.text for delta in watched) == alone.text
    assert tuple(token for delta in watched for token in delta.token_ids) == alone.outputs[0].token_ids
    assert [delta.finish_reason for delta in watched] == [None] * (len(watched) - 1) + [FinishReason.LENGTH]
    assert watched[-1].usage.completion_tokens == NUM_TOKENS


async def test_a_stop_string_that_spans_the_preemption_is_found():
    """The last of three is preempted; a first run tells after which of its tokens, a second one stops just there."""
    sampling = KINDS["seeded"]
    others = [(ids(20, seed=number), sampling) for number in range(2)]
    num_prompt_tokens = 0
    resumed_at = []

    def watch(step):
        for taken in step.taken:
            chunk = next(chunk for chunk in step.chunks if chunk.seat == taken.seat)
            end = chunk.start + chunk.num_tokens
            if taken.num_prompt_tokens == num_prompt_tokens and end > num_prompt_tokens:
                resumed_at.append(end - num_prompt_tokens)

    async def run(how):
        async with tight_engine(before_step=watch) as engine:
            nonlocal num_prompt_tokens
            num_prompt_tokens = len(engine.model.vocabulary.encode(PROMPT, add_special_tokens=True))
            *_, generation = await together(engine, [*others, (PROMPT, how)])
            assert engine.statistics().num_preemptions > 0
            pieces = [engine.model.vocabulary.token_bytes(token).decode() for token in generation.outputs[0].token_ids]
        return generation, pieces

    free, pieces = await run(sampling)
    assert resumed_at
    at = resumed_at[0]
    start = sum(map(len, pieces[: at - 1]))
    stop = free.text[start + 1 : sum(map(len, pieces[: at + 1]))]
    assert len(stop) > 1
    assert free.text.index(stop) == start + 1, "the text before the preemption has no such string"
    resumed_at.clear()
    stopped, _ = await run(msgspec.structs.replace(sampling, stop=stop))
    assert resumed_at == [at]
    assert stopped.text == free.text[: start + 1]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == (FinishReason.STOP, stop)


async def test_three_choices_finish_where_there_are_pages_for_two():
    ask = (ids(20), SamplingParams(n=3, seed=11, max_tokens=36, ignore_eos=True))
    [alone] = await solo([ask])
    async with tight_engine(8) as engine:
        [generation] = await together(engine, [ask])
        assert engine.statistics().num_preemptions > 0
        assert idle(engine)
    assert_same(generation, alone)
    assert len({output.token_ids for output in generation.outputs}) == 3


async def test_a_prompt_that_is_preempted_in_mid_prefill_publishes_only_pages_that_are_whole():
    """Two better requests grow into the pages that the last chunks of a long prompt would need; then it is sent again.

    In pages of 8 tokens the prompt needs 30 chunks of one page; the others grow by a page in 8 steps.
    """
    prompt, sampling = ids(240, seed=9), SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    urgent = SamplingParams(temperature=0, max_tokens=36, ignore_eos=True)
    asks = [(prompt, sampling), (ids(2, seed=7), urgent), (ids(2, seed=8), urgent)]
    expected = await solo(asks)
    ends, taken_at = [], []

    def watch(step):
        taken_at.extend(chunk.start for chunk in step.chunks for taken in step.taken if chunk.seat == taken.seat)
        ends.extend(chunk.start + chunk.num_tokens for chunk in step.chunks if chunk.num_tokens > 2)

    async with default_engine(
        35, page_size=8, max_num_seqs=4, max_num_batched_tokens=10, max_model_len=256, before_step=watch
    ) as engine:
        results = {}

        async def ask(number, priority):
            results[number] = await engine.generate(*asks[number], priority=priority)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 0, 0)
            await until(lambda: len(ends) >= 3)
            assert ends[-1] < 240
            tasks.start_soon(ask, 1, -1)
            tasks.start_soon(ask, 2, -1)
        assert engine.statistics().num_preemptions == 1
        again = await engine.generate(*asks[0])
        assert idle(engine)
    assert len(taken_at) == 5, "three sequences sat down, one of them twice, and the prompt was sent again"
    for number, alone in enumerate(expected):
        assert_same(results[number], alone)
    assert_same(again, expected[0])
    assert again.usage.cached_tokens == 232
