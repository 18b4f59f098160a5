"""Text from byte tokens on the default model: whole and streamed answers agree on every character, and on broken ones.

The rule: an output that ends inside a character loses that unfinished character; other invalid bytes become U+FFFD.
Outputs are forced by prompts that the model copies, and by `logit_bias` on byte tokens. The default model's vocabulary
is of the byte-level kind; the other kinds are held against their original tokenizers in the tests of vocabularies.

Cases: B017, B018, B019, B020, B022.
"""

import anyio
import pytest

from limelight.generation import SamplingParams
from limelight.testing import scripted_engine
from tests.cases.endpoints import ENDPOINTS, both_ways
from tests.cases.small_engines import (
    chat,
    completion,
    default_engine,
    deltas_of,
    model_client,
    one_by_one,
    together,
)
from tests.http.wire import CHAT, COMPLETIONS, by_choice, chat_body, serving, streamed

pytestmark = pytest.mark.anyio
default_model = (pytest.mark.model, pytest.mark.usefixtures("default_model"))

CHARACTERS = "😀👩‍🚀ď你"


def model_test(function):
    for mark in default_model:
        function = mark(function)
    return function


def joined(response):
    """Text, reason and number of tokens of a streamed chat."""
    *chunks, last = streamed(response)
    choices = by_choice(chunks)[0]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    return text, choices[-1]["finish_reason"], last["usage"]["completion_tokens"]


def whole(response):
    answer = response.json()
    choice = answer["choices"][0]
    return choice["message"]["content"], choice["finish_reason"], answer["usage"]["completion_tokens"]


USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("stop", [None, ["你!"], ["\u200d🚀"], ["ď你"]])
async def test_an_answer_cut_after_any_byte_is_the_same_streamed_or_not(stop):
    num_bytes = len(CHARACTERS.encode())
    async with serving(scripted_engine(CHARACTERS)) as client:
        complete, *_ = whole(await client.post(CHAT, json=chat_body(stop=stop)))
        for limit in range(1, num_bytes + 1):
            body = chat_body(max_tokens=limit, stop=stop)
            at_once, in_parts = await client.post(CHAT, json=body), await client.post(CHAT, json=body | USAGE)
            text, reason, num_tokens = whole(at_once)
            assert joined(in_parts) == (text, reason, num_tokens), limit
            assert CHARACTERS.startswith(text)
            assert "\ufffd" not in text
            if reason == "length":
                assert num_tokens == limit
                assert text == CHARACTERS.encode()[:limit].decode(errors="ignore")
            else:
                assert text == complete
    assert complete == (CHARACTERS if stop in (None, ["你!"]) else CHARACTERS.partition(stop[0])[0])


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.id)
async def test_every_endpoint_cuts_characters_by_the_same_rule(endpoint):
    raw = CHARACTERS.encode()
    async with serving(scripted_engine(CHARACTERS)) as client:
        for limit in range(1, len(raw) + 1):
            answer = await both_ways(client, endpoint, **{endpoint.limit: limit})
            assert answer.text == raw[:limit].decode(errors="ignore")
            assert answer.num_tokens == limit


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.id)
@pytest.mark.parametrize(
    "raw", [b"\xa7 the", b"a\xff\xfeb", b"\xf0\x9f\x98 x", b"\xed\xa0\xbd.", b"\xc0\xafz"], ids=repr
)
async def test_every_endpoint_shows_broken_bytes_and_keeps_what_follows(endpoint, raw):
    async with serving(scripted_engine(raw)) as client:
        answer = await both_ways(client, endpoint)
        assert answer.text == raw.decode(errors="replace")
        assert (await both_ways(client, endpoint, **{endpoint.stop: [answer.text[-1]]})).text == answer.text[:-1]


@model_test
async def test_a_copied_emoji_cut_after_any_token_is_the_same_streamed_or_not():
    num_tokens = 15
    prompt = f"{CHARACTERS}\n" * 4
    async with default_engine() as engine:
        asks = [(prompt, SamplingParams(temperature=0, max_tokens=limit)) for limit in range(1, num_tokens + 1)]
        generations = await together(engine, asks)
        streams = {}

        async def read(limit, sampling):
            streams[limit] = await deltas_of(engine.stream(prompt, sampling))

        async with anyio.create_task_group() as tasks:
            for limit, (_, sampling) in enumerate(asks, start=1):
                tasks.start_soon(read, limit, sampling)
        raw = [engine.model.vocabulary.token_bytes(token) for token in generations[-1].outputs[0].token_ids]
    assert generations[-1].text == CHARACTERS
    assert len(raw) == num_tokens
    for limit, generation in enumerate(generations, start=1):
        assert generation.text == "".join(delta.text for delta in streams[limit])
        assert generation.text == b"".join(raw[:limit]).decode(errors="ignore")
        assert generation.usage.completion_tokens == limit
        assert generation.outputs[0].finish_reason == "length"


@model_test
async def test_a_prompt_that_ends_inside_a_character_never_comes_back():
    async with default_engine() as engine, model_client(engine) as client:
        vocabulary = engine.model.vocabulary
        token_ids = vocabulary.encode("Hello 🌶", add_special_tokens=True)
        for num_dropped in (1, 2):
            prompt = token_ids[:-num_dropped]
            assert vocabulary.decode(prompt).endswith("\ufffd")
            body = completion(prompt, max_tokens=4, temperature=0, logprobs=0)
            answer = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
            choices = by_choice(streamed(await client.post(COMPLETIONS, json=body | {"stream": True})))[0]
            assert "".join(choice["text"] for choice in choices) == answer["text"]
            assert len(choices[0]["text"]) < 20
            assert "Hello" not in answer["text"]


def byte_tokens(vocabulary, lowest, highest):
    """Ids of the tokens that are one single byte of this range."""
    found = ((token_id, vocabulary.token_bytes(token_id)) for token_id in range(vocabulary.size))
    return [token_id for token_id, raw in found if len(raw) == 1 and lowest <= raw[0] <= highest]


@model_test
async def test_bytes_that_are_no_text_stay_in_their_own_request():
    normal = ("The capital of France is", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    async with default_engine() as engine:
        vocabulary = engine.model.vocabulary
        continuations, leads = byte_tokens(vocabulary, 0x80, 0xBF), byte_tokens(vocabulary, 0xC2, 0xF4)
        [alone] = await one_by_one(engine, [normal])
        lonely = SamplingParams(max_tokens=12, logit_bias={continuations[0]: 100})
        mix = dict.fromkeys((*leads, *continuations, *vocabulary.encode("a b", add_special_tokens=False)), 30.0)
        mixed = SamplingParams(temperature=2, seed=1, max_tokens=12, logit_bias=mix)
        lead_first = [leads[0], *vocabulary.encode("a", add_special_tokens=False), continuations[1]]
        generations = await together(
            engine, [normal, ("hi", lonely), ("hi", mixed), (lead_first, lonely), (lead_first, mixed)]
        )
    assert generations[0].text == alone.text
    assert generations[1].text == generations[3].text == "\ufffd" * 12
    for generation in generations[1:]:
        raw = b"".join(map(vocabulary.token_bytes, generation.outputs[0].token_ids))
        assert generation.usage.completion_tokens == 12
        assert raw.decode(errors="replace").startswith(generation.text)
    assert "\ufffd" in generations[2].text


@model_test
async def test_fifty_seeds_of_broken_bytes_are_answered_alike_streamed_or_not():
    """Single bytes, then a word that begins with a space, in any order: each invalid run is shown, all text is kept."""
    num_tokens = 7
    async with default_engine(256, max_num_seqs=50, max_model_len=64) as engine, model_client(engine) as client:
        vocabulary = engine.model.vocabulary
        words = vocabulary.encode(" the of", add_special_tokens=False)
        bias = dict.fromkeys(map(str, (*byte_tokens(vocabulary, 0x80, 0xFF), *words)), 40)
        shown = {}

        async def ask(seed):
            fields = {"temperature": 2, "top_p": 1, "seed": seed, "logit_bias": bias, "max_tokens": num_tokens}
            body = chat("hi", **fields, logprobs=True, continue_final_message=True)
            body["messages"].append({"role": "assistant", "content": "This is one of"})
            one = await client.post(CHAT, json=body)
            two = await client.post(CHAT, json=body | USAGE)
            assert one.status_code == two.status_code == 200
            assert joined(two) == whole(one)
            entries = one.json()["choices"][0]["logprobs"]["content"]
            shown[seed] = whole(one)[0], b"".join(bytes(entry["bytes"]) for entry in entries)

        async with anyio.create_task_group() as tasks:
            for seed in range(50):
                tasks.start_soon(ask, seed)
    assert len(shown) == 50
    for text, raw in shown.values():
        expected = raw.decode(errors="replace")
        assert expected.startswith(text)
        assert len(expected) - len(text) <= 1, "only an unfinished character at the end is missing"
    assert any("\ufffd the" in text or "\ufffd of" in text for text, _ in shown.values())


@model_test
async def test_spaces_at_every_border_are_kept_token_by_token_and_merged():
    prompts = [
        "def f(x):\n        return x\ndef g(x):\n        return",
        "a    b    c    d   ",
        "one two three",
        "x\n\n\n    y\n\n\n    z\n\n\n   ",
    ]
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    async with default_engine() as engine:
        library = engine.model.vocabulary._tokenizer
        generations = await together(engine, [(prompt, sampling) for prompt in prompts])
        for prompt, generation in zip(prompts, generations, strict=True):
            one_by_one_text = "".join(delta.text for delta in await deltas_of(engine.stream(prompt, sampling)))
            before = list(generation.prompt_token_ids)
            everything = library.decode([*before, *generation.outputs[0].token_ids], skip_special_tokens=False)
            assert generation.text == everything[len(library.decode(before, skip_special_tokens=False)) :]
            assert one_by_one_text == generation.text
    assert generations[1].text.startswith(" e    f    g")
