"""Every field of `/v1/responses` does what the table says: from the official client's types and the table itself."""

import typing

import pytest
from openai.types.responses import response_create_params

from limelight.http.protocol.fields.chat import CHAT_FIELDS
from limelight.http.protocol.fields.field import Effect
from limelight.http.protocol.fields.responses import RESPONSES_FIELDS
from limelight.http.protocol.responses.request import ResponsesRequest
from limelight.testing import scripted_engine
from tests.http.responses.wire import RESPONSES, body, plain, whole
from tests.http.wire import error_of

pytestmark = pytest.mark.anyio

WORKING = {
    "model": "scripted",
    "input": [{"role": "user", "content": "hi"}],
    "instructions": "Be brief.",
    "stream": True,
    "background": True,
    "store": False,
    "metadata": {"topic": "t"},
    "include": ["message.output_text.logprobs"],
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_logprobs": 0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": "low", "summary": "auto", "mode": "standard", "context": "auto"},
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "seed": 3,
    "stop": ["zzz"],
    "stop_token_ids": [200],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "min_tokens": 2,
    "skip_special_tokens": False,
    "logit_bias": {"97": -1},
    "structured_outputs": {"regex": "[a-z]{3}"},
    "bad_words": ["zzz"],
    "allowed_token_ids": [97, 98],
    "thinking_token_budget": -1,
    "repetition_detection": {"max_pattern_size": 3, "min_count": 3},
    "stream_interval": 2,
    "skip_reading_prefix_cache": True,
    "include_reasoning": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "priority": 1,
    "max_queue_ms": 60_000,
    "max_ttft_ms": 60_000,
    "max_total_ms": 60_000.5,
    "cache_salt": "mine",
    "request_id": "abc",
    "return_timings": True,
}
"""A value for every field that works, but for `previous_response_id`."""

FILED = {
    "stream_options": {"include_obfuscation": True},
    "max_tool_calls": 3,
    "service_tier": "flex",
    "session_id": "s",
    "spaces_between_special_tokens": True,
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
}
"""A value for every field without effect."""


def test_the_table_has_every_parameter_of_the_official_client():
    kinds = (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    )
    names = set().union(*(typing.get_type_hints(kind) for kind in kinds))
    assert len(names) > 25
    assert names <= RESPONSES_FIELDS.keys()


def test_no_field_of_the_sibling_endpoints_is_dropped_in_silence():
    assert CHAT_FIELDS.keys() <= RESPONSES_FIELDS.keys()


def test_the_typed_request_has_exactly_the_fields_that_the_table_accepts():
    accepted = {name for name, field in RESPONSES_FIELDS.items() if field.effect is not Effect.REFUSED}
    assert set(ResponsesRequest.__struct_fields__) == accepted


async def test_the_server_does_with_every_field_what_the_table_says(serve):
    async with serve() as client:
        asked = body(seed=1, max_output_tokens=6)
        first = whole(await client.post(RESPONSES, json=asked))
        for name, field in RESPONSES_FIELDS.items():
            if field.effect is Effect.REFUSED:
                error = error_of(await client.post(RESPONSES, json=asked | {name: "?"}), 400)
                assert (error["code"], error["param"]) == ("unsupported_parameter", name)
                assert field.note in error["message"]
                for harmless in (None, *field.accepts):
                    same = whole(await client.post(RESPONSES, json=asked | {name: harmless}))
                    assert plain(same["output"]) == plain(first["output"]), name
            elif field.effect is Effect.NO_EFFECT and name != "stream_options":
                same = whole(await client.post(RESPONSES, json=asked | {name: FILED[name]}))
                assert plain(same["output"]) == plain(first["output"]), name
            elif field.effect is Effect.WORKS:
                value = first["id"] if name == "previous_response_id" else WORKING[name]
                answer = await client.post(RESPONSES, json=asked | {name: value})
                assert answer.status_code == 200, (name, answer.text)
                assert "x-limelight-ignored-fields" not in answer.headers


async def test_sampling_values_reach_the_device(serve):
    heard = []

    def listen(turn):
        heard.append(turn.sampling)
        return 97

    asked = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.25,
        "seed": 11,
    }
    async with serve(scripted_engine(listen)) as client:
        told = whole(await client.post(RESPONSES, json=body(max_output_tokens=1, logit_bias={"5": -7.5}, **asked)))
    assert {name: getattr(heard[0], name) for name in asked} == asked
    assert heard[0].logit_bias == {5: -7.5}
    assert (told["temperature"], told["top_p"]) == (0.5, 0.25)


async def test_what_was_asked_comes_back_with_the_answer(serve):
    echoed = {
        "instructions": "Be brief.",
        "metadata": {"topic": "t"},
        "max_output_tokens": 2,
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "tool_choice": "none",
        "user": "u",
    }
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}
    async with serve() as client:
        told = whole(await client.post(RESPONSES, json=body(tools=[tool], service_tier="flex", **echoed)))
    assert {name: told[name] for name in echoed} == echoed
    assert {name: told["tools"][0][name] for name in tool} == tool
    assert told["service_tier"] == "default"


async def test_words_and_forms_bind_the_answer(serve):
    async with serve() as client:

        async def text(**fields):
            answer = whole(await client.post(RESPONSES, json=body(max_output_tokens=20, **fields)))
            return answer["output"][0]["content"][0]["text"]

        assert await text(structured_outputs={"choice": ["maybe"]}) == "maybe"
        assert await text(structured_outputs={"regex": "[0-9]{3}"}) == "000"
        assert await text(text={"format": {"type": "json_schema", "name": "n", "schema": {"const": 5}}}) == "5"
        both = body(structured_outputs={"choice": ["a"]}, text={"format": {"type": "json_object"}})
        assert error_of(await client.post(RESPONSES, json=both), 400)["param"] == "text.format"
        bad = body(text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "nothing"}}})
        assert error_of(await client.post(RESPONSES, json=bad), 400)["param"] == "text.format"
        bad = body(structured_outputs={"json": {"type": "nothing"}})
        assert error_of(await client.post(RESPONSES, json=bad), 400)["param"] == "structured_outputs"
