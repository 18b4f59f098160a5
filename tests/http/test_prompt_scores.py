"""Log-probabilities of prompts and of tokens that were asked for, on the wire."""

from itertools import pairwise

import pytest

from limelight.testing import scripted_engine
from limelight.testing.executor import scripted_logprob
from tests.http.wire import CHAT, COMPLETIONS, HI, by_choice, completion_body, error_of, streamed

pytestmark = pytest.mark.anyio
PROMPT = "aé😀 z"


def joined(parts):
    return {name: [entry for part in parts for entry in part[name]] for name in parts[0]}


@pytest.mark.parametrize("text", ["ok", ""])
async def test_echoed_tokens_come_first_and_the_very_first_has_no_numbers(serve, text):
    request = completion_body(prompt=PROMPT, echo=True, logprobs=2, max_tokens=8, add_special_tokens=False)
    async with serve(scripted_engine(text)) as client:
        whole = (await client.post(COMPLETIONS, json=request)).json()["choices"][0]
        chunks = streamed(await client.post(COMPLETIONS, json=request | {"stream": True}))
    raw, logprobs = PROMPT.encode(), whole["logprobs"]
    assert whole["text"] == PROMPT + text
    assert len({len(entries) for entries in logprobs.values()}) == 1
    assert logprobs["tokens"][:3] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["token_logprobs"][: len(raw)] == [
        None,
        *(scripted_logprob(last, token_id) for last, token_id in pairwise(raw)),
    ]
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["top_logprobs"][1]) in (2, 3)
    assert logprobs["text_offset"][: len(raw) + 1] == [0, 1, 1, 2, 2, 2, 2, 3, 4, 5][: len(raw) + 1]
    pieces = by_choice(chunks)[0]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert joined([piece["logprobs"] for piece in pieces if piece["logprobs"]]) == logprobs


async def test_nothing_but_the_prompt_is_scored_with_max_tokens_0(serve):
    prompts = ["abc", "de"]
    request = completion_body(prompt=prompts, echo=True, logprobs=1, max_tokens=0, n=2)
    async with serve(scripted_engine("no")) as client:
        answer = (await client.post(COMPLETIONS, json=request)).json()
        streamed_answer = streamed(await client.post(COMPLETIONS, json=request | {"stream": True}))
    assert [choice["text"] for choice in answer["choices"]] == ["abc", "abc", "de", "de"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 4
    assert answer["usage"]["completion_tokens"] == 0
    first = answer["choices"][0]["logprobs"]
    assert first["tokens"] == ["<|begin|>", "a", "b", "c"]
    assert first["text_offset"] == [0, 0, 1, 2]
    assert first == answer["choices"][1]["logprobs"], "every choice has the prompt"
    assert {
        index: "".join(piece["text"] for piece in parts) for index, parts in by_choice(streamed_answer).items()
    } == {
        0: "abc",
        1: "abc",
        2: "de",
        3: "de",
    }


async def test_a_long_prompt_is_streamed_in_frames_that_fit(serve):
    prompt = "lorem ipsum " * 100
    request = completion_body(prompt=prompt, echo=True, logprobs=20, max_tokens=0, stream=True)
    async with serve(scripted_engine("no")) as client:
        response = await client.post(COMPLETIONS, json=request)
    assert max(map(len, response.text.split("\n\n"))) < 64 * 1024
    pieces = by_choice(streamed(response))[0]
    assert "".join(piece["text"] for piece in pieces) == prompt
    scores = joined([piece["logprobs"] for piece in pieces if piece["logprobs"]])
    assert scores["text_offset"] == [0, *range(len(prompt))]


async def test_token_names_may_be_ids(serve):
    request = completion_body(prompt=[97, 98], echo=True, logprobs=0, max_tokens=1, return_tokens_as_token_ids=True)
    async with serve(scripted_engine("c")) as client:
        (choice,) = (await client.post(COMPLETIONS, json=request)).json()["choices"]
        chat = {"model": "scripted", "messages": HI, "logprobs": True, "top_logprobs": 1, "max_tokens": 1}
        answer = await client.post(CHAT, json=chat | {"return_tokens_as_token_ids": True})
    assert choice["logprobs"]["tokens"] == ["token_id:97", "token_id:98", "token_id:99"]
    assert choice["logprobs"]["top_logprobs"][2] == {"token_id:99": -0.25}
    (entry,) = answer.json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], entry["top_logprobs"][0]["token"]) == ("token_id:99", [99], "token_id:99")


async def test_tokens_that_are_asked_for_stand_behind_the_best(serve):
    async with serve(scripted_engine("c")) as client:
        request = completion_body(logprobs=1, logprob_token_ids=[120, 99], max_tokens=1)
        (choice,) = (await client.post(COMPLETIONS, json=request)).json()["choices"]
        chat = {"model": "scripted", "messages": HI, "logprob_token_ids": [120, 121], "max_tokens": 1}
        answer = await client.post(CHAT, json=chat | {"logprobs": True})
        error = error_of(await client.post(CHAT, json=chat), 400)
        beyond = completion_body(logprob_token_ids=[258])
        unknown = error_of(await client.post(COMPLETIONS, json=beyond), 400)
        too_many = error_of(await client.post(COMPLETIONS, json=completion_body(logprob_token_ids=[1] * 129)), 400)
    assert choice["logprobs"]["top_logprobs"][0].keys() == {"c", "x"}
    (entry,) = answer.json()["choices"][0]["logprobs"]["content"]
    assert [top["token"] for top in entry["top_logprobs"]] == ["x", "y"]
    assert {error["param"], unknown["param"], too_many["param"]} == {"logprob_token_ids"}


async def test_prompt_logprobs_have_the_shape_of_vllm(serve):
    async with serve(scripted_engine("no")) as client:
        request = completion_body(prompt=[97, 98, 195], prompt_logprobs=1, max_tokens=0)
        (choice,) = (await client.post(COMPLETIONS, json=request)).json()["choices"]
        chat = {"model": "scripted", "messages": HI, "prompt_logprobs": 0, "max_tokens": 1}
        answer = (await client.post(CHAT, json=chat)).json()
    expected = scripted_logprob(97, 98)
    assert choice["prompt_logprobs"][:2] == [None, {"98": {"logprob": expected, "rank": 1, "decoded_token": "b"}}]
    assert choice["logprobs"] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True}, "max_tokens"),
        ({"max_tokens": -1, "echo": True, "logprobs": 1}, "max_tokens"),
    ],
)
async def test_what_cannot_be_scored_is_refused(serve, fields, param):
    async with serve() as client:
        error = error_of(await client.post(COMPLETIONS, json=completion_body(**fields)), 400)
    assert error["param"] == param
