"""Drawing tokens on the default model: seeds, neighbours, extreme values, and how long an answer may get.

A temperature above 2 is refused, and so is `max_tokens: 0` unless a completion echoes its prompt. `max_tokens` beyond
the rest of the context is clamped.

Cases: B061, B062, B063, B065, B067, B068, B072, B073, B074, B075, B077.
"""

import asyncio

import anyio
import pytest

from limelight.errors import ContextLengthExceeded
from limelight.generation import SamplingParams
from tests.cases.small_engines import (
    chat,
    completion,
    default_engine,
    ids,
    model_client,
    one_by_one,
    together,
    until,
)
from tests.http.wire import CHAT, COMPLETIONS, by_choice, error_of, streamed

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.usefixtures("default_model")]

PROMPT = "The capital of France is"
SEEDED = SamplingParams(temperature=0.8, seed=42, max_tokens=16, ignore_eos=True)
UNSEEDED = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)


def tokens(generation, index=0):
    return generation.outputs[index].token_ids


def texts(answer):
    return [choice.get("text") or choice["message"]["content"] for choice in answer["choices"]]


async def first_difference_is_a_tie(engine, prompt, alone, other):
    """Whether the two best tokens lie within 0.001 of each other where `other` leaves `alone`; true if it never does.

    Sums in another order may turn such a tie; a wrong mask, position or page changes more than that.
    """
    pairs = zip(tokens(alone), tokens(other), strict=True)
    position = next((number for number, (one, two) in enumerate(pairs) if one != two), None)
    if position is None:
        return True
    common = [*engine.model.vocabulary.encode(prompt, add_special_tokens=True), *tokens(alone)[:position]]
    again = await engine.generate(common, SamplingParams(temperature=0, max_tokens=1, logprobs=2))
    best, second = again.outputs[0].logprobs[0].top
    return best.logprob - second.logprob < 1e-3


# ---- seeds and neighbours


async def test_a_seeded_answer_is_the_same_alone_and_beside_unseeded_ones_that_come_and_go():
    async with default_engine() as engine:
        alone = await engine.generate(PROMPT, SEEDED)

        async def neighbour(at_step, max_tokens):
            await until(lambda: engine.statistics().num_steps >= at_step, 60)
            sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            neighbours.append(await engine.generate("Once upon a time", sampling))

        for delays in ((0,), (0, 3, 6), (9, 9)):
            neighbours = []
            started = engine.statistics().num_steps
            async with anyio.create_task_group() as tasks:
                for number, delay in enumerate(delays):
                    tasks.start_soon(neighbour, started + delay, 4 + 3 * number)
                again = await engine.generate(PROMPT, SEEDED)
            assert tokens(again) == tokens(alone)
            assert len(neighbours) == len(delays)


async def test_the_first_of_several_choices_is_the_answer_of_its_seed_alone():
    async with default_engine() as engine:
        alone = await engine.generate(PROMPT, SEEDED)
        both = await engine.generate(PROMPT, SamplingParams(n=2, temperature=0.8, seed=42, max_tokens=16))
    assert tokens(both)[:8] == tokens(alone)[:8]
    assert tokens(both, 1)[:8] != tokens(alone)[:8]


async def test_chunked_prefill_and_preemption_do_not_change_a_seeded_answer():
    prompt = ids(41)
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=42, max_tokens=30, ignore_eos=True)
    neighbour = SamplingParams(temperature=1.0, max_tokens=34, ignore_eos=True)
    async with default_engine() as engine:
        alone = await engine.generate(prompt, sampling)
        assert engine.statistics().num_preemptions == 0
    steps = []
    async with default_engine(
        8, max_num_seqs=4, max_num_batched_tokens=16, before_step=steps.append, max_model_len=120
    ) as engine:
        *_, crowded = await together(engine, [(ids(10, 1), neighbour), (ids(10, 2), neighbour), (prompt, sampling)])
        assert engine.statistics().num_preemptions > 0
    assert tokens(crowded) == tokens(alone)
    assert max(sum(chunk.num_tokens for chunk in step.chunks) for step in steps) <= 16


async def test_unseeded_answers_differ_side_by_side_and_one_after_another():
    sampling = SamplingParams(max_tokens=6)
    async with default_engine() as engine:
        beside = await together(engine, [(PROMPT, sampling)] * 10)
        after = await one_by_one(engine, [(PROMPT, sampling)] * 5)
    assert len({tokens(generation) for generation in beside}) > 1
    assert len({tokens(generation) for generation in after}) > 1


async def test_choices_of_one_seed_differ_among_themselves_and_repeat_as_a_set():
    sampling = SamplingParams(n=4, seed=7, max_tokens=8)
    async with default_engine() as engine:
        first, second = [await engine.generate(PROMPT, sampling) for _ in range(2)]
    answers = [output.token_ids for output in first.outputs]
    assert len(set(answers)) == 4
    assert [output.token_ids for output in second.outputs] == answers


@pytest.mark.parametrize("caching", [True, False])
async def test_a_greedy_answer_does_not_depend_on_its_neighbours(caching):
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    others = [("Once upon a time", UNSEEDED), (ids(50), greedy), (ids(7), UNSEEDED)]
    async with default_engine(enable_prefix_caching=caching) as engine:
        alone = await engine.generate(PROMPT, greedy)
        eight = await together(engine, [(PROMPT, greedy)] * 8)
        mixed, *_ = await together(engine, [(PROMPT, greedy), *others])
        for generation in (*eight, mixed):
            assert await first_difference_is_a_tie(engine, PROMPT, alone, generation)


async def test_greedy_choices_are_equal_and_their_prompt_counts_once():
    async with default_engine() as engine, model_client(engine) as client:
        answer = (await client.post(CHAT, json=chat(n=3, temperature=0, max_tokens=5))).json()
        single = (await client.post(CHAT, json=chat(temperature=0, max_tokens=5))).json()
    assert texts(answer) == texts(single) * 3
    assert answer["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 15


# ---- values


async def test_every_sampling_field_has_a_visible_effect():
    async with default_engine() as engine, model_client(engine) as client:

        async def ask(**fields):
            body = completion("Say banana ten times: banana banana", temperature=0, max_tokens=12, logprobs=0)
            response = await client.post(COMPLETIONS, json=body | fields)
            assert response.status_code == 200, response.text
            return response.json()["choices"]

        vocabulary = engine.model.vocabulary
        [banana] = vocabulary.encode(" banana", add_special_tokens=False)
        [cat] = vocabulary.encode(" cat", add_special_tokens=False)
        [[plain], [banned], [forced], [stopped], two, [hot]] = await asyncio.gather(
            ask(),
            ask(logit_bias={str(banana): -100}),
            ask(logit_bias={str(cat): 100}),
            ask(stop=" banana"),
            ask(n=2),
            ask(temperature=2, seed=1),
        )
        assert plain["logprobs"]["tokens"].count(" banana") > 5
        assert " banana" not in banned["logprobs"]["tokens"]
        assert forced["text"] == " cat" * 12
        assert (stopped["text"], stopped["finish_reason"]) == ("", "stop")
        assert len(two) == 2
        assert hot["text"] != plain["text"]
        penalties = ("frequency_penalty", "presence_penalty", "repetition_penalty")
        for [penalised] in await asyncio.gather(*(ask(**{name: 2}) for name in penalties)):
            assert penalised["text"] != plain["text"]
        cuts = ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1})
        for [cold] in await asyncio.gather(*(ask(temperature=2, seed=1, **cut) for cut in cuts)):
            assert cold["text"] == plain["text"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_temperatures_from_nothing_to_the_limit_are_answered_and_tiny_ones_are_greedy(path):
    body = chat(max_tokens=4) if path == CHAT else completion(max_tokens=4)
    async with default_engine() as engine, model_client(engine) as client:

        async def ask(temperature, bias):
            response = await client.post(path, json=body | {"temperature": temperature, "seed": 3, "logit_bias": bias})
            assert response.status_code == 200, response.text
            return texts(response.json())

        for bias in ({}, {"30": -100, "28": -100, "216": 100}):
            temperatures = (0, 1e-300, 1e-10, 1e-6, 1e-5, 0.0003, 0.01, 2.0)
            greedy, *answers = await asyncio.gather(*(ask(temperature, bias) for temperature in temperatures))
            assert answers[:3] == [greedy] * 3
        for temperature in (2.0001, 100):
            error_of(await client.post(path, json=body | {"temperature": temperature}), 400)


OFF_OR_FINE = [
    ("temperature", "0"),
    ("temperature", "2"),
    ("top_p", "1"),
    ("top_p", "1e-300"),
    ("top_k", "0"),
    ("top_k", "-1"),
    ("top_k", "1"),
    ("top_k", "999999999"),
    ("top_k", "9223372036854775807"),
    ("min_p", "0"),
    ("min_p", "1"),
    ("presence_penalty", "2"),
    ("frequency_penalty", "-2"),
    ("repetition_penalty", "1e-6"),
    ("repetition_penalty", "1000"),
    ("seed", "-1"),
    ("seed", "-9223372036854775808"),
    ("seed", "9223372036854775807"),
]
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
NO_NUMBERS = ("NaN", "-NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"NaN"', '"1"', "true", "[]", "0x1", ".5")
REFUSED = [
    *((name, value) for name in (*NUMBERS, "top_k", "seed", "logit_bias", "n") for value in NO_NUMBERS),
    ("temperature", "-1"),
    ("temperature", "-1e-9"),
    ("top_p", "0"),
    ("top_p", "-0.0"),
    ("top_p", "1.5"),
    ("top_k", "-2"),
    ("top_k", "1.5"),
    ("top_k", "9223372036854775808"),
    ("min_p", "2"),
    ("min_p", "-0.1"),
    ("presence_penalty", "10"),
    ("presence_penalty", "-10"),
    ("frequency_penalty", "10"),
    ("frequency_penalty", "-10"),
    ("repetition_penalty", "-1"),
    ("repetition_penalty", "0"),
    ("repetition_penalty", "1e300"),
    ("seed", "9223372036854775808"),
    ("logit_bias", '{"5": NaN}'),
    ("logit_bias", '{"5": 1e999}'),
    ("logit_bias", '{"5": -101}'),
    ("logit_bias", '{"-1": 1}'),
    ("logit_bias", '{"49152": 1}'),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_every_number_is_answered_by_the_table_and_the_server_goes_on(path):
    start = '"messages":[{"role":"user","content":"hi"}]' if path == CHAT else '"prompt":"hi"'

    async with default_engine() as engine, model_client(engine) as client:

        async def ask(name, value):
            raw = f'{{"model":"SmolLM2-135M-Instruct",{start},"max_tokens":2,"{name}":{value}}}'
            return await client.post(path, content=raw.encode(), headers={"content-type": "application/json"})

        for name, value in REFUSED:
            error = error_of(await ask(name, value), 400)
            assert error["type"] == "invalid_request_error", (name, value)
        answers = await asyncio.gather(*(ask(name, value) for name, value in OFF_OR_FINE))
        for (name, value), response in zip(OFF_OR_FINE, answers, strict=True):
            assert response.status_code == 200, (name, value, response.text)
            assert response.json()["usage"]["completion_tokens"] in (1, 2), (name, value)
        assert (await ask("temperature", "1")).status_code == 200


# ---- length


async def test_without_a_limit_a_model_that_never_stops_fills_the_context():
    async with default_engine(4, max_model_len=48) as engine, model_client(engine) as client:
        whole = (await client.post(CHAT, json=chat(ignore_eos=True, temperature=0))).json()
        null = (await client.post(CHAT, json=chat(ignore_eos=True, temperature=0, max_tokens=None))).json()
        chunks = streamed(await client.post(CHAT, json=chat(ignore_eos=True, temperature=0, stream=True)))
        assert whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["total_tokens"] == 48
        assert texts(null) == texts(whole)
        assert "".join(choice["delta"].get("content", "") for choice in by_choice(chunks)[0]) == texts(whole)[0]


@pytest.mark.parametrize(
    ("limits", "num_tokens"),
    [
        ({"max_completion_tokens": 5}, 5),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3),
        ({"max_completion_tokens": 9, "max_tokens": 3}, 9),
        ({"max_completion_tokens": None, "max_tokens": 4}, 4),
        ({"max_tokens": 1}, 1),
    ],
)
async def test_the_limit_asked_for_is_the_number_of_tokens(limits, num_tokens):
    async with default_engine() as engine, model_client(engine) as client:
        answer = (await client.post(CHAT, json=chat(ignore_eos=True, **limits))).json()
    assert answer["usage"]["completion_tokens"] == num_tokens
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_limit_that_is_no_positive_integer_is_refused():
    async with default_engine() as engine, model_client(engine) as client:
        for value in (0, -1, 1.5, "5", True):
            for name in ("max_tokens", "max_completion_tokens"):
                assert error_of(await client.post(CHAT, json=chat(**{name: value})), 400)["param"] == name
            error_of(await client.post(COMPLETIONS, json=completion(max_tokens=value)), 400)


async def test_prompts_around_the_context_length_get_what_is_left_or_a_400_with_true_numbers():
    context = 48
    async with default_engine(8, max_model_len=context) as engine, model_client(engine) as client:
        for length in (context - 8, context - 1, context, context + 1):
            for max_tokens in (1, 8, 9, None):
                body = completion(ids(length), max_tokens=max_tokens, temperature=0, ignore_eos=True)
                response = await client.post(COMPLETIONS, json=body)
                if length < context:
                    answer = response.json()
                    expected = min(max_tokens or 16, context - length)
                    assert answer["usage"]["completion_tokens"] == expected
                    assert answer["usage"]["prompt_tokens"] == length
                    assert answer["choices"][0]["finish_reason"] == "length"
                else:
                    error = error_of(response, 400)
                    assert error["code"] == "context_length_exceeded"
                    assert f"{length} tokens" in error["message"]
                    assert f"{context}" in error["message"]
        rest = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        assert (await engine.generate(ids(context - 8), rest)).usage.completion_tokens == 8
        assert (await engine.generate(ids(context - 1), rest)).usage.completion_tokens == 1
        with pytest.raises(ContextLengthExceeded):
            await engine.generate(ids(context), rest)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_longer_than_the_context_is_refused_and_never_cut(stream):
    async with default_engine(8, max_model_len=64) as engine, model_client(engine) as client:
        body = chat("word " * 192, stream=stream)
        body["messages"].insert(0, {"role": "system", "content": "Answer only BLUE"})
        error = error_of(await client.post(CHAT, json=body), 400)
    assert error["code"] == "context_length_exceeded"
    assert "64" in error["message"]
    num_tokens = int(error["message"].split(" tokens")[0].rpartition(" ")[2])
    assert 192 < num_tokens < 260


async def test_an_echo_is_scored_and_streams():
    async with default_engine() as engine, model_client(engine) as client:
        prompt = "Your answer: Yes"
        error_of(await client.post(COMPLETIONS, json=completion(prompt, max_tokens=0)), 400)
        for limit in (0, 2):
            answer = await client.post(COMPLETIONS, json=completion(prompt, echo=True, max_tokens=limit, logprobs=1))
            [choice] = answer.json()["choices"]
            scores = choice["logprobs"]
            assert choice["text"].startswith(prompt)
            assert (choice["text"] == prompt) == (limit == 0)
            assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
            assert all(score <= 0 for score in scores["token_logprobs"][1:])
            assert len({len(scores[name]) for name in scores}) == 1
            assert "".join(scores["tokens"]) == choice["text"]
        body = completion(prompt, echo=True, max_tokens=2, temperature=0)
        [whole] = texts((await client.post(COMPLETIONS, json=body)).json())
        chunks = streamed(await client.post(COMPLETIONS, json=body | {"stream": True}))
    assert whole.startswith(prompt)
    assert len(whole) > len(prompt)
    assert "".join(choice["text"] for choice in by_choice(chunks)[0]) == whole
