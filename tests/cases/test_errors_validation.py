"""What clients send by mistake or by habit: halves of characters, bodies that are no request, models that are not
served, explicit nulls in every field, and one id for many requests.

A half of a surrogate pair is refused wherever it stands in the body, as JSON of such texts is no Unicode; inside the
arguments of an earlier call, which are a text that holds JSON, it is passed on as the escape that the client wrote.

Cases: B086, B088, B089, B090, B091.
"""

import itertools
import json
import re

import anyio
import openai
import pytest

from limelight.http.openapi.shapes import SHAPES
from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, serving, streamed

pytestmark = pytest.mark.anyio

REQUIRED = {
    "/v1/chat/completions": {"model": "scripted", "messages": HI},
    "/v1/completions": {"model": "scripted", "prompt": "hi"},
    "/v1/messages": {"model": "scripted", "messages": HI, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "scripted", "messages": HI},
    "/v1/responses": {"model": "scripted", "input": "hi"},
    "/v1/embeddings": {"model": "scripted", "input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104, 105]},
}
"""What a request to each endpoint must have. Those that change adapters are left out: nobody may use them here."""
JSON_TYPE = {"content-type": "application/json"}
LEAKS = re.compile(r"Traceback|TypeError|ValueError|KeyError|UnicodeEncode|msgspec|Struct|litestar|codec")
USER = {"role": "user", "content": "hi"}


def told(response, status, *, anthropic=False):
    """The error of a response, which must be JSON of its API's shape and tell nothing of the inside."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert not LEAKS.search(response.text)
    error = response.json()["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert anthropic or {"param", "code"} <= error.keys()
    return error


# ---- halves of characters


HALVES = [r"\ud83d", r"x \ude00 y", r"\ude00\ud83d", r"\ud83d\ud83d\ude00", r"\uD83D\u0041", r"\\\\\uDBFF"]
HALF = "<half>"
CALLED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": HALF}}
FUNCTION = {"type": "function", "function": {"name": "f"}}


def _function(**fields):
    return {"tools": [{"type": "function", "function": FUNCTION["function"] | fields}]}


PLACES = {
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": HALF}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
        {"messages": [{"role": HALF, "content": "hi"}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALLED]}]},
        {"messages": [USER, {"role": "tool", "tool_call_id": HALF, "content": HALF}]},
        {"model": HALF},
        {"stop": HALF},
        {"stop": ["a", HALF]},
        {"user": HALF},
        {"metadata": {"a": HALF}},
        {"metadata": {HALF: "a"}},
        {"bad_words": [HALF]},
        {"an_unknown_field": HALF},
        {HALF: 1},
        _function(name=HALF),
        _function(description=HALF),
        _function(parameters={"type": "object", "properties": {HALF: {}}}),
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [HALF]}}}},
        {"structured_outputs": {"choice": [HALF]}},
        {"structured_outputs": {"regex": HALF}},
    ],
    "/v1/completions": [{"prompt": HALF}, {"prompt": ["a", HALF]}, {"suffix": HALF}, {"stop": HALF}],
    "/v1/messages": [
        {"messages": [{"role": "user", "content": HALF}]},
        {"system": HALF},
        {"system": [{"type": "text", "text": HALF}]},
        {"stop_sequences": [HALF]},
        {"tools": [{"name": HALF, "input_schema": {"type": "object"}}]},
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": HALF}}]},
            ]
        },
    ],
    "/v1/messages/count_tokens": [{"messages": [{"role": "user", "content": HALF}]}],
    "/v1/responses": [
        {"input": HALF},
        {"input": [{"role": "user", "content": HALF}]},
        {"input": [{"type": "function_call_output", "call_id": "a", "output": HALF}]},
        {"instructions": HALF},
        {"metadata": {"a": HALF}},
    ],
    "/v1/embeddings": [{"input": HALF}, {"input": ["a", HALF]}],
    "/tokenize": [{"prompt": HALF}, {"messages": [{"role": "user", "content": HALF}]}],
}
STREAMED = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
OF_THE_MOMENT = {"id", "created", "created_at", "completed_at"}


@pytest.mark.parametrize("path", PLACES)
async def test_half_a_character_is_refused_wherever_it_stands(path):
    async with serving(scripted_engine("an answer")) as client:
        asked = [*zip(PLACES[path], itertools.cycle(HALVES)), *((PLACES[path][0], half) for half in HALVES)]
        for fields, half in asked:
            for stream in ({}, {"stream": True}) if path in STREAMED else ({},):
                raw = json.dumps(REQUIRED[path] | fields | stream).replace(HALF, half)
                response = await client.post(path, content=raw.encode(), headers=JSON_TYPE)
                told(response, 400, anthropic="messages" in path)
        assert (await client.post(path, json=REQUIRED[path])).status_code == 200


@pytest.mark.parametrize("path", PLACES)
async def test_whole_pairs_marks_of_byte_order_and_zeros_are_text_and_broken_bytes_are_refused(path):
    plain = json.dumps(REQUIRED[path]).encode()
    fine = [b"\xef\xbb\xbf" + plain, plain.replace(b'"hi"', rb'"\ud83d\ude00"'), plain.replace(b'"hi"', rb'"h\u0000i"')]
    fine.append(plain.replace(b'"hi"', '"😀"'.encode()))
    broken = [b"h\xff\xfei", b"\xc0\xaf", b"\xed\xa0\xbd", b"\xf0\x9f\x98"]
    async with serving(scripted_engine("an answer")) as client:
        for raw in fine:
            assert (await client.post(path, content=raw, headers=JSON_TYPE)).status_code == 200
        for raw in (*(plain.replace(b'"hi"', b'"' + each + b'"') for each in broken), plain.decode().encode("utf-16")):
            told(await client.post(path, content=raw, headers=JSON_TYPE), 400, anthropic="messages" in path)


async def test_half_a_character_in_the_arguments_of_an_earlier_call_is_history():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}
    turns = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "x"}]
    item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"a": "\\ud83d"}'}
    async with serving(scripted_engine("fine")) as client:
        for stream in (False, True):
            body = chat_body(messages=turns, stream=stream)
            assert (await client.post(CHAT, json=body)).status_code == 200
            body = {"model": "scripted", "stream": stream, "input": [USER, item]}
            assert (await client.post("/v1/responses", json=body)).status_code == 200


# ---- what is no request, and models that are not served


NO_REQUESTS = [b"", b" ", b"{", b"[]", b"null", b'"x"', b"5", b"true", b"{}", b"{}{}", b"\x00", b'{"a":' * 2000]


@pytest.mark.parametrize("path", REQUIRED)
async def test_what_is_no_request_is_told_so_in_the_shape_of_its_api(path):
    is_anthropic = path.startswith("/v1/messages")
    async with serving(scripted_engine("an answer")) as client:
        for raw in NO_REQUESTS:
            told(await client.post(path, content=raw, headers=JSON_TYPE), 400, anthropic=is_anthropic)
        for kind in ("text/plain", "application/xml", "multipart/form-data; boundary=x"):
            response = await client.post(path, content=b"{}", headers={"content-type": kind})
            told(response, 415, anthropic=is_anthropic)
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            response = await client.request(method, path)
            assert "POST" in response.headers["allow"]
            told(response, 405, anthropic=True)
        told(await client.post(f"{path}/no/where", json=REQUIRED[path]), 404, anthropic=True)


NOT_SERVED = ["nope", "", "../x", "A" * 10_000, "Scripted", "scripted "]


@pytest.mark.parametrize("path", [path for path, body in REQUIRED.items() if "model" in body])
async def test_a_model_that_is_not_served_is_a_404_and_one_of_a_wrong_type_a_400(path):
    is_anthropic = path.startswith("/v1/messages")
    async with serving(scripted_engine("an answer")) as client:
        for stream in ({}, {"stream": True}) if path in STREAMED else ({},):
            for model in NOT_SERVED:
                response = await client.post(path, json=REQUIRED[path] | {"model": model} | stream)
                error = told(response, 404, anthropic=is_anthropic)
                assert is_anthropic or (error["code"], error["param"]) == ("model_not_found", "model")
                assert len(error["message"]) < 700
            for model in (None, 5, True, ["scripted"], {}):
                response = await client.post(path, json=REQUIRED[path] | {"model": model} | stream)
                told(response, 400, anthropic=is_anthropic)
        assert told(await client.get("/v1/models/nope"), 404)["code"] == "model_not_found"
        assert [each["id"] for each in (await client.get("/v1/models")).json()["data"]] == ["scripted"]


async def test_the_official_client_raises_the_right_exceptions_with_a_message():
    async with serving(scripted_engine("an answer")) as client:
        api = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="-", http_client=client, max_retries=0)
        hi = [USER]
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError, match="nope") as missing:
                await api.chat.completions.create(model="nope", messages=hi, stream=stream)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError, match="temperature") as refused:
                await api.chat.completions.create(model="scripted", messages=hi, temperature=9, stream=stream)
            assert refused.value.param == "temperature"
            with pytest.raises(openai.BadRequestError, match="temperature"):
                await api.responses.create(model="scripted", input="hi", temperature=9, stream=stream)
        with pytest.raises(openai.NotFoundError, match="nope"):
            await api.models.retrieve("nope")


# ---- nulls and ids


def lasting(answer):
    """An answer without ids and dates."""
    if isinstance(answer, dict):
        return {name: lasting(value) for name, value in answer.items() if name not in OF_THE_MOMENT}
    return [lasting(value) for value in answer] if isinstance(answer, list) else answer


def test_every_endpoint_is_asked_below():
    posts = {path for (method, path), shape in SHAPES.items() if method == "POST" and shape.body is not None}
    assert {path for path in posts if "lora" not in path} <= REQUIRED.keys()


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.path in REQUIRED], ids=lambda each: each.path)
async def test_null_is_the_same_as_leaving_a_field_out(endpoint):
    body = REQUIRED[endpoint.path]
    nulls = {name: None for name in endpoint.fields if name not in body}
    async with serving(scripted_engine("an answer")) as client:
        plain = await client.post(endpoint.path, json=body)
        assert plain.status_code == 200, plain.text
        for each in ({name: None} for name in nulls):
            answer = await client.post(endpoint.path, json=body | each)
            assert answer.status_code == 200, (each, answer.text)
        answer = await client.post(endpoint.path, json=body | nulls)
        assert lasting(answer.json()) == lasting((await client.post(endpoint.path, json=body)).json())


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_requests_under_one_id_do_not_meet(path, body):
    async with serving(scripted_engine()) as client:
        asks = [body(seed=seed, max_tokens=20, stream=True, request_id="same") for seed in range(8)]

        async def texts(ask):
            chunks = streamed(await client.post(path, json=ask, headers={"x-request-id": "same"}))
            return [lasting(chunk) for chunk in chunks], {chunk["id"] for chunk in chunks}

        alone = [await texts(ask) for ask in asks]
        together = [None] * len(asks)

        async def ask_beside_others(number):
            together[number] = await texts(asks[number])

        async def leave_early():
            async with client.stream("POST", path, json=body(max_tokens=500, stream=True, request_id="same")) as answer:
                assert answer.status_code == 200

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave_early)
            for number in range(len(asks)):
                tasks.start_soon(ask_beside_others, number)

        def joined(chunks):
            return "".join(
                choice.get("text", choice.get("delta", {}).get("content") or "")
                for chunk in chunks
                for choice in chunk["choices"]
            )

        assert [joined(chunks) for chunks, _ in together] == [joined(chunks) for chunks, _ in alone]
        assert all(len(ids) == 1 for _, ids in together)
        assert len(set.union(*(ids for _, ids in together))) == len(asks)
