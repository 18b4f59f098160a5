"""`/v1/completions` over a real socket."""

import time

import pytest

from limelight.http import HttpSettings
from limelight.testing import ByteVocabulary, echo, scripted_engine
from tests.http.wire import COMPLETIONS, by_choice, completion_body, error_of, streamed

pytestmark = pytest.mark.anyio


def texts(chunks):
    return {
        index: "".join(choice["text"] for choice in choices) for index, choices in sorted(by_choice(chunks).items())
    }


async def test_a_completion_has_the_official_shape_and_sixteen_tokens(serve):
    async with serve() as client:
        answer = (await client.post(COMPLETIONS, json=completion_body())).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    [choice] = answer["choices"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason", "stop_reason", "finish_details"}
    assert (choice["finish_reason"], len(choice["text"])) == ("length", 16)
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "heard"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
async def test_every_form_of_prompt_reaches_the_model(serve, prompt, heard):
    async with serve(scripted_engine(echo)) as client:
        answer = (await client.post(COMPLETIONS, json=completion_body(prompt=prompt))).json()
    assert [choice["text"] for choice in answer["choices"]] == heard


@pytest.mark.parametrize("prompt", [[], [[]], ["a", [1]], [1, "a"], [[1], 2], [["a"]], {}, 5, None, [258], [-1]])
async def test_what_is_no_prompt_is_refused_by_name(serve, prompt):
    async with serve() as client:
        error = error_of(await client.post(COMPLETIONS, json=completion_body(prompt=prompt)), 400)
    assert error["param"].startswith("prompt")


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt_streamed_or_not(serve):
    request = completion_body(prompt=["one", "two", "three"], n=2, max_tokens=6, seed=5)
    async with serve() as client:
        whole = (await client.post(COMPLETIONS, json=request)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = streamed(await client.post(COMPLETIONS, json=request | options))
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert list(texts(chunks).values()) == [choice["text"] for choice in whole["choices"]]
    assert last["choices"] == []
    assert (
        last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] == sum(map(len, ("one", "two", "three"))) + 3
    )
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 36
    for choices in by_choice(chunks).values():
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        assert choices[-1]["text"] == ""


@pytest.mark.parametrize("prompt", ["Grüße", list("Grüße".encode())])
async def test_echo_puts_the_prompt_before_the_text_streamed_or_not(serve, prompt):
    request = completion_body(prompt=prompt, echo=True, max_tokens=2)
    async with serve(scripted_engine("ok!")) as client:
        whole = (await client.post(COMPLETIONS, json=request)).json()
        chunks = streamed(await client.post(COMPLETIONS, json=request | {"stream": True}))
    assert whole["choices"][0]["text"] == "Grüßeok"
    assert texts(chunks) == {0: "Grüßeok"}
    assert by_choice(chunks)[0][0]["text"] == "Grüße"


async def test_legacy_logprobs_are_parallel_lists_whose_offsets_point_into_the_text(serve):
    request = completion_body(logprobs=2, max_tokens=None)
    async with serve(scripted_engine("aé😀z")) as client:
        whole = (await client.post(COMPLETIONS, json=request)).json()["choices"][0]
        chunks = streamed(await client.post(COMPLETIONS, json=request | {"stream": True}))
    logprobs = whole["logprobs"]
    assert len({len(entries) for entries in logprobs.values()}) == 1
    assert logprobs["tokens"][:2] == ["a", "bytes:\\xc3"]
    assert logprobs["text_offset"][:8] == [0, 1, 1, 2, 2, 2, 2, 3]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top[token] == value
    pieces = [choice["logprobs"] for choice in by_choice(chunks)[0] if choice["logprobs"]]
    joined = {name: [entry for piece in pieces for entry in piece[name]] for name in logprobs}
    assert joined == logprobs


async def test_more_prompts_than_the_server_can_ever_take_are_refused_for_good(serve):
    async with serve(scripted_engine(max_num_requests=2)) as client:
        error_of(await client.post(COMPLETIONS, json=completion_body(prompt=["a"] * 3)), 400)
        answer = await client.post(COMPLETIONS, json=completion_body(prompt=["a"] * 2))
    assert answer.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failing_prompt_ends_the_whole_request_with_its_error(serve, stream):
    engine = scripted_engine(max_model_len=64)
    async with serve(engine) as client:
        request = completion_body(prompt=["a", "b" * 100, "c"], max_tokens=40, stream=stream)
        error = error_of(await client.post(COMPLETIONS, json=request), 400)
        assert engine.statistics().num_requests == 0
    assert error["code"] == "context_length_exceeded"
    assert "64" in error["message"]


async def test_a_prompt_that_is_refused_late_is_refused_before_the_others_are_answered(serve, monkeypatch):
    def encode(vocabulary, text, **options):
        if len(text) > 64:
            time.sleep(0.3)  # the short prompts have their first tokens by then
        return plain(vocabulary, text, **options)

    plain = ByteVocabulary.encode
    monkeypatch.setattr(ByteVocabulary, "encode", encode)
    async with serve(scripted_engine("ok", max_model_len=64), HttpSettings(header_wait_seconds=30)) as client:
        request = completion_body(prompt=["a", "b" * 100, "c"], stream=True)
        error = error_of(await client.post(COMPLETIONS, json=request), 400)
        assert error["code"] == "context_length_exceeded"
        chunks = by_choice(streamed(await client.post(COMPLETIONS, json=request | {"prompt": ["a", "b", "c"]})))
    assert ["".join(choice["text"] for choice in chunks[index]) for index in range(3)] == ["ok"] * 3


async def test_a_special_token_of_the_tokenizer_can_be_left_out(serve):
    async with serve() as client:
        with_begin = (await client.post(COMPLETIONS, json=completion_body())).json()
        without = (await client.post(COMPLETIONS, json=completion_body(add_special_tokens=False))).json()
    assert with_begin["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"] + 1


async def test_a_response_format_holds_for_completions_too(serve):
    pattern = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}}
    async with serve() as client:
        answer = (await client.post(COMPLETIONS, json=completion_body(response_format=pattern))).json()
        both = completion_body(response_format=pattern, structured_outputs={"regex": "a"})
        refused = error_of(await client.post(COMPLETIONS, json=both), 400)
        unknown = error_of(await client.post(COMPLETIONS, json=completion_body(response_format={"type": "xml"})), 400)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ('"yes"', "stop")
    assert (refused["param"], unknown["param"]) == ("response_format", "response_format.type")
