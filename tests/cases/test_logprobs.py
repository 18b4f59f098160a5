"""Log-probabilities: one finite entry per token, whose bytes are the answer, streamed or not.

`bytes` are what a token adds to the text, so that the joined bytes of all entries are the text: the token that ends an
answer has an entry like any other, with its name and no bytes. Minus infinity is -9999 on the wire. What a stop string
cuts off a token's text stays in that token's bytes, as they are the token's own.

Cases: B078, B079, B080.
"""

import json

import openai
import pytest

from limelight.parsing.answer_format import AnswerFormat
from limelight.testing import scripted_engine
from tests.cases.small_engines import chat, completion, default_engine, model_client
from tests.cases.test_tool_calling import FIND, NAMED, TWO
from tests.http.responses.wire import RESPONSES
from tests.http.responses.wire import streamed as streamed_response
from tests.http.wire import CHAT, COMPLETIONS, by_choice, chat_body, frames, serving

pytestmark = [pytest.mark.anyio]

END = "<|im_end|>"
ENUM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["😀ď"]}}}
HERMES = AnswerFormat(tool_format="hermes", renders_tools=True, renders_calls=True)
OUTPUTS = {
    "plain": {},
    "several": {"n": 2, "temperature": 1, "seed": 1},
    "a stop string that does not come": {"stop": ["ZZZ"]},
    "a stop string that comes": {"stop": ["lp you"]},
    "characters of several tokens": {"response_format": ENUM},
    "one token to draw from": {"top_k": 1, "temperature": 1},
    "what is banned": {"logit_bias": {"28": -100, "30": 100}, "max_tokens": 4},
    "free to call": {"tools": [FIND]},
    "must call": {"tools": [FIND], "tool_choice": "required"},
    "must call this one": {"tools": [FIND], "tool_choice": NAMED},
}


def finite(text):
    """The JSON of an answer, which must hold no number that is none."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in an answer"))


def joined(choices):
    return [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]


def raw(entries):
    return b"".join(bytes(entry["bytes"]) for entry in entries)


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("fields", OUTPUTS.values(), ids=OUTPUTS)
async def test_one_finite_entry_per_token_streamed_or_not(fields):
    body = chat(logprobs=True, top_logprobs=20, temperature=0, max_tokens=40) | fields
    async with default_engine() as engine, model_client(engine) as client:
        whole = finite((await client.post(CHAT, json=body)).text)
        response = await client.post(CHAT, json=body | {"stream": True})
    finite("[" + ",".join(line[6:] for line in response.text.split("\n\n") if line.startswith("data: {")) + "]")
    chunks = by_choice(frames(response.content))
    assert sum(len(joined(choices)) for choices in chunks.values()) == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        entries = joined([choice])
        assert joined(chunks[choice["index"]]) == entries
        for entry in entries:
            best = [(other["token"], tuple(other["bytes"])) for other in entry["top_logprobs"]]
            assert len(set(best)) == len(best) == 20
            assert -9999 <= entry["logprob"] <= 0
        if "tools" in fields or "lp you" in str(fields):
            continue
        assert raw(entries).decode() == choice["message"]["content"]
        assert [entry["token"] for entry in entries if not entry["bytes"]] == [END] * (
            choice["finish_reason"] == "stop"
        )


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
async def test_what_is_banned_is_not_drawn_and_has_a_finite_number():
    async with default_engine() as engine, model_client(engine) as client:
        [cat] = engine.model.vocabulary.encode(" cat", add_special_tokens=False)
        body = completion("a", logprobs=5, temperature=0, max_tokens=3, logit_bias={str(cat): -100})
        for fields in ({"logprob_token_ids": [cat]}, {"echo": True, "top_k": 1, "temperature": 1}):
            for stream in (False, True):
                response = await client.post(COMPLETIONS, json=body | fields | {"stream": stream})
                answers = frames(response.content) if stream else [finite(response.text)]
                scores = [answer["choices"][0]["logprobs"] for answer in answers]
                names = [name for each in scores if each for name in each["tokens"]]
                numbers = [value for each in scores if each for value in each["token_logprobs"]]
                assert " cat" not in names
                assert len(numbers) == 3 + ("echo" in fields)
                assert all(value is None or -9999 <= value <= 0 for value in numbers)


@pytest.mark.parametrize("skip", [True, False])
async def test_special_tokens_have_bytes_where_the_text_has_them(skip):
    """Not only the end: any token that the text leaves out."""
    body = chat_body(logprobs=True, top_logprobs=2, skip_special_tokens=skip, ignore_eos=True, max_tokens=5)
    script = [97, 256, 98, 257, 99]
    async with serving(scripted_engine(lambda turn: script[turn.number])) as client:
        [choice] = (await client.post(CHAT, json=body)).json()["choices"]
        chunks = by_choice(frames((await client.post(CHAT, json=body | {"stream": True})).content))[0]
        text = (await client.post(COMPLETIONS, json=body_of_text(skip))).json()["choices"][0]
    assert choice["message"]["content"] == ("abc" if skip else "a<|end|>b<|begin|>c")
    assert raw(joined([choice])).decode() == choice["message"]["content"]
    assert joined(chunks) == joined([choice])
    assert [entry["token"] for entry in joined([choice])] == ["a", "<|end|>", "b", "<|begin|>", "c"]
    assert text["logprobs"]["text_offset"] == ([0, 1, 1, 2, 2] if skip else [0, 1, 8, 9, 18])


def body_of_text(skip):
    fields = {"logprobs": 1, "skip_special_tokens": skip, "ignore_eos": True, "max_tokens": 5}
    return {"model": "scripted", "prompt": "hi", **fields}


@pytest.mark.parametrize("stop", [[98], [256]])
async def test_a_token_that_ends_the_answer_in_silence_has_no_bytes(stop):
    body = chat_body(logprobs=True, stop_token_ids=stop)
    async with serving(scripted_engine("ab")) as client:
        [choice] = (await client.post(CHAT, json=body)).json()["choices"]
    entries = joined([choice])
    assert len(entries) == (2 if stop == [98] else 3)
    assert raw(entries).decode() == choice["message"]["content"]


@pytest.mark.parametrize("include_usage", [False, True])
async def test_entries_of_calls_are_those_of_everything_that_was_written(include_usage):
    body = chat_body(logprobs=True, top_logprobs=2, tools=[FIND], max_tokens=400)
    async with serving(scripted_engine(f"So: {TWO}", answer_format=HERMES)) as client:
        answer = (await client.post(CHAT, json=body)).json()
        options = {"stream": True, "stream_options": {"include_usage": include_usage}}
        chunks = by_choice(frames((await client.post(CHAT, json=body | options)).content))[0]
    entries = joined(answer["choices"])
    assert joined(chunks) == entries
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert raw(entries).decode() == f"So: {TWO}"


async def test_the_official_client_reads_them_alike_at_every_endpoint():
    text = "aé😀z"
    async with serving(scripted_engine(text)) as client:
        api = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="-", http_client=client)
        answer = await api.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=3
        )
        response = await api.responses.create(
            model="scripted", input="hi", top_logprobs=3, include=["message.output_text.logprobs"]
        )
        asked = {"model": "scripted", "input": "hi", "top_logprobs": 3, "stream": True}
        asked["include"] = ["message.output_text.logprobs"]
        events = streamed_response(await client.post(RESPONSES, json=asked))
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text
    assert len(entries) == answer.usage.completion_tokens
    told = response.output[0].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in told).decode() == text
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(delta["delta"] for delta in deltas) == text
    names = [entry["token"] for delta in deltas for entry in delta["logprobs"]]
    assert names == [entry.token for entry in told]
