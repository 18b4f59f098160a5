"""Whatever arrives, the answer is a clear error of the official shape, and the server goes on."""

import json

import pytest

from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.http.test_sse import Barrier
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, error_of

pytestmark = pytest.mark.anyio

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "raw",
    [b"", b"  ", b"{", b"[]", b"null", b'"x"', b"5", b"not json", b"\xff\xfe{}", b'{"model":NaN}', b'{"a":1}x', DEEP],
    ids=lambda raw: repr(raw[:12]),
)
async def test_a_body_that_is_no_json_object_is_a_400(serve, path, raw):
    async with serve() as client:
        error = error_of(await client.post(path, content=raw, headers={"content-type": "application/json"}), 400)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 700


BAD_FIELDS = [
    ({"messages": {}}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role"),
    ({"messages": [*HI, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": "", "audio": {"id": "a"}}]}, "messages[0].audio"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function"),
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 10**20}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 10}, "presence_penalty"),
    ({"frequency_penalty": -10}, "frequency_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"n": 10**4000}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [300]}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"300": 1}}, "logit_bias"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"tools": []}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json"}}, "response_format.type"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 200}, "cache_salt"),
    ({"request_id": "line\nbreak"}, "request_id"),
    ({"user": 5}, "user"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"temprature": 1}, "temprature"),
    ({"maxTokens": 1}, "maxTokens"),
    ({"guided_json": {}}, "guided_json"),
    ({"prompt": "x"}, "prompt"),
    ({"messages": [{"role": "user", "content": "x", "nmae": "a"}]}, "messages[0].nmae"),
]


async def test_a_bad_field_is_a_400_that_names_it_and_the_server_goes_on(shared_client):
    for fields, param in BAD_FIELDS:
        error = error_of(await shared_client.post(CHAT, json=chat_body() | fields), 400)
        assert (fields, error["param"]) == (fields, param)
        assert len(error["message"]) < 700
        assert "Struct" not in error["message"]
    assert (await shared_client.post(CHAT, json=chat_body(max_tokens=1))).status_code == 200


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", '"NaN"'])
async def test_numbers_that_are_none_are_refused(shared_client, literal):
    for field in ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"):
        raw = f'{{"model": "scripted", "messages": [{{"role": "user", "content": "x"}}], "{field}": {literal}}}'
        error_of(await shared_client.post(CHAT, content=raw), 400)


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"model":"scripted","messages":[{"role":"user","content":"emoji \ud83d"}]}',
        rb'{"model":"scripted","messages":[{"role":"user","content":"x \ude00 y"}]}',
        rb'{"model":"scripted","messages":[{"role":"user","content":[{"type":"text","text":"\ud83d"}]}]}',
        rb'{"model":"scripted","messages":[{"role":"user","content":"x"}],"stop":"\ud83d"}',
        rb'{"model":"scripted","messages":[{"role":"user","content":"x"}],"user":"\udfff"}',
        rb'{"model":"scripted","messages":[{"role":"user","content":"x"}],"grammar":"\ud83d"}',
        rb'{"model":"scripted","messages":[{"role":"user","content":"x"}],"tool_choice":"\ud83d"}',
        rb'{"model":"scripted","messages":[{"role":"user","content":"x"}],"\ud83d":1}',
        rb'{"model":"\ud83d","messages":[{"role":"user","content":"x"}]}',
        rb'{"model":"scripted","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"\ud83d","arguments":""}}]}]}',
    ],
)
async def test_half_a_surrogate_pair_is_a_400_that_says_so(shared_client, raw):
    for body in (raw, raw.replace(b'"model"', b'"stream":true,"model"')):
        error = error_of(await shared_client.post(CHAT, content=body), 400)
        assert "half of a character" in error["message"]


async def test_a_conversation_of_too_many_messages_is_refused_before_it_costs_time(shared_client):
    error = error_of(await shared_client.post(CHAT, json=chat_body(messages=HI * 10_001)), 400)
    assert error["param"] == "messages"
    assert "10001" in error["message"]


async def test_a_whole_surrogate_pair_and_a_byte_order_mark_are_fine(shared_client):
    raw = rb'{"model":"scripted","messages":[{"role":"user","content":"\ud83d\ude00"}],"max_tokens":1}'
    plain = (await shared_client.post(CHAT, content=raw)).json()
    marked = await shared_client.post(CHAT, content=b"\xef\xbb\xbf" + raw)
    assert marked.json()["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


async def test_invalid_utf_8_is_a_400(shared_client):
    raw = json.dumps(chat_body()).encode().replace(b'"hi"', b'"\xff\xfe"')
    assert "UTF-8" in error_of(await shared_client.post(CHAT, content=raw), 400)["message"]


@pytest.mark.parametrize("field", [b"messages", b"unknown", b"chat_template_kwargs", b"metadata", b"tools"])
async def test_deep_nesting_is_a_400(shared_client, field):
    for nested in (DEEP, b'{"a":' * 50_000 + b"1" + b"}" * 50_000):
        raw = b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"' + field + b'":' + nested + b"}"
        error_of(await shared_client.post(CHAT, content=raw), 400)


async def test_a_body_over_the_limit_is_a_413_with_and_without_a_content_length(serve):
    async def pieces():
        for _ in range(40):
            yield b" " * 1000

    async with serve(settings=HttpSettings(max_body_bytes=20_000)) as client:
        for content in (b" " * 20_001, pieces()):
            error = error_of(await client.post(CHAT, content=content), 413)
            assert (error["code"], "20000" in error["message"]) == ("payload_too_large", True)
        assert (await client.post(CHAT, json=chat_body(max_tokens=1))).status_code == 200


async def test_ten_megabytes_of_prompt_are_answered_with_the_context_length(serve):
    async with serve() as client:
        error = error_of(
            await client.post(CHAT, json=chat_body(messages=[{"role": "user", "content": "x" * 10**7}])), 400
        )
        assert error["code"] == "context_length_exceeded"
        assert "2048" in error["message"]
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("model", ["nope", "", "../x", "A" * 10_000, "scripted "])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_a_404(shared_client, model, stream):
    error = error_of(await shared_client.post(CHAT, json=chat_body(model=model, stream=stream)), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert len(error["message"]) < 400


async def test_a_missing_model_or_prompt_is_named(shared_client):
    assert error_of(await shared_client.post(CHAT, json={"messages": HI}), 400)["param"] == "model"
    assert error_of(await shared_client.post(CHAT, json={"model": "scripted"}), 400)["param"] == "messages"
    assert error_of(await shared_client.post(COMPLETIONS, json={"model": "scripted"}), 400)["param"] == "prompt"


async def test_unknown_routes_and_wrong_methods_have_the_same_shape(shared_client):
    assert error_of(await shared_client.get("/v1/nope"), 404)["code"] == "not_found"
    assert error_of(await shared_client.post("/v1/images", json={}), 404)["code"] == "not_found"
    response = await shared_client.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]
    assert error_of(await shared_client.get("/v1/models/nope"), 404)["code"] == "model_not_found"


async def test_a_body_of_another_type_is_a_415_but_plain_curl_works(shared_client):
    raw = json.dumps(chat_body(max_tokens=1))
    for media_type in ("text/plain", "multipart/form-data; boundary=x", "application/xml"):
        response = await shared_client.post(CHAT, content=raw, headers={"content-type": media_type})
        assert error_of(response, 415)["code"] == "unsupported_media_type"
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        assert (await shared_client.post(CHAT, content=raw, headers=headers)).status_code == 200
        from_a_page = headers | {"origin": "https://evil.example"}
        error_of(await shared_client.post(CHAT, content=raw, headers=from_a_page), 415)


async def test_a_full_server_says_when_to_come_back(serve):
    barrier = Barrier()
    engine = scripted_engine(before_step=barrier, max_num_requests=1)
    async with (
        serve(engine, HttpSettings(header_wait_seconds=0)) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=1)),
    ):
        for body in (chat_body(), chat_body(stream=True)):
            response = await client.post(CHAT, json=body)
            assert error_of(response, 503)["code"] == "overloaded"
            assert int(response.headers["retry-after"]) >= 1
            assert int(response.headers["retry-after-ms"]) >= 1
        error_of(await client.post(COMPLETIONS, json=completion_body()), 503)
        barrier.open()


@pytest.mark.parametrize(("length", "limit"), [(98, 1), (98, None), (99, 1), (99, 9), (99, None), (90, 500)])
async def test_a_prompt_that_leaves_one_token_is_answered_and_never_cut(serve, length, limit):
    async with serve(scripted_engine(max_model_len=100)) as client:
        request = completion_body(prompt=[97] * length, max_tokens=limit, ignore_eos=True)
        answer = (await client.post(COMPLETIONS, json=request)).json()
    assert answer["usage"]["prompt_tokens"] == length
    assert answer["usage"]["completion_tokens"] == min(limit or 16, 100 - length)
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("length", [100, 101, 300])
async def test_a_prompt_that_leaves_no_token_is_a_400_with_the_true_numbers(serve, length):
    async with serve(scripted_engine(max_model_len=100)) as client:
        for stream in (False, True):
            request = completion_body(prompt=[97] * length, max_tokens=1, stream=stream)
            error = error_of(await client.post(COMPLETIONS, json=request), 400)
            assert error["code"] == "context_length_exceeded"
            assert str(length) in error["message"]
            assert "100" in error["message"]
