"""What holds for one stream holds for all: the cases of streaming, usage and forms at each endpoint that generates.

Cases: B004, B005, B006, B012, B013, B057, B059, B060, B062, B068, B077, B084.
"""

import json

import anthropic
import openai
import pytest
from litestar import Litestar, asgi
from litestar.config.compression import CompressionConfig

from limelight.http import create_app
from limelight.testing import scripted_engine
from tests.cases.endpoints import ENDPOINTS, MESSAGES, RESPONSES, both_ways, events
from tests.cases.small_engines import MODEL, default_engine, idle, model_client, until
from tests.http.wire import CHAT, COMPLETIONS, client_of, serving

pytestmark = pytest.mark.anyio

EACH = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.id)
LIMITS = {CHAT: 8, COMPLETIONS: 8, MESSAGES: 8, RESPONSES: 16}


# ---- on the wire


@EACH
async def test_the_headers_and_the_framing_of_a_stream_are_those_that_proxies_and_readers_need(endpoint):
    async with serving(scripted_engine("Grüße 😀")) as client:
        response = await client.post(endpoint.path, json=endpoint.body | {"stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["transfer-encoding"] == "chunked"
    assert not {"content-length", "content-encoding"} & response.headers.keys()
    assert b"\r" not in response.content
    *parts, rest = response.content.split(b"\n\n")
    assert rest == b""
    for part in parts:
        data = [line.removeprefix(b"data: ") for line in part.split(b"\n") if line.startswith(b"data: ")]
        assert len(data) == 1
        assert data == [b"[DONE]"] or isinstance(json.loads(data[0]), dict)
    assert (parts[-1] == b"data: [DONE]") == (endpoint.path in (CHAT, COMPLETIONS))


@EACH
async def test_a_compressing_host_that_leaves_the_mount_out_compresses_no_stream(endpoint):
    engine = scripted_engine("an answer")
    mounted = asgi("/llm", is_mount=True, copy_scope=True)(create_app(engine))
    compression = CompressionConfig(backend="gzip", minimum_size=1, exclude="/llm")
    outer = Litestar([mounted], compression_config=compression, openapi_config=None, logging_config=None)
    async with engine, client_of(outer) as client:
        body, accept = endpoint.body | {"stream": True}, {"accept-encoding": "gzip"}
        response = await client.post(f"/llm{endpoint.path}", json=body, headers=accept)
    assert "content-encoding" not in response.headers
    assert events(response)


# ---- what fails


@EACH
async def test_a_fault_in_the_middle_is_one_error_in_the_stream_and_the_official_clients_raise_it(endpoint):
    def fail(_step):
        steps.append(None)
        if len(steps) == 4:
            raise RuntimeError("a secret of the forward pass")

    steps = []
    engine = scripted_engine("several tokens of text", before_step=fail)
    async with serving(engine) as client:
        response = await client.post(endpoint.path, json=endpoint.body | {"stream": True})
        errors = [event for event in events(response) if "rror" in str(event.get("type")) or event.get("error")]
        failed = [event for event in events(response) if event.get("type") == "response.failed"]
        assert len(errors) + len(failed) == 1
        for leak in ("secret", "RuntimeError", "Traceback"):
            assert leak not in response.text
        await until(lambda: idle(engine))
        steps.clear()
        with pytest.raises((openai.APIError, anthropic.APIError, AssertionError)):
            await read_officially(client, endpoint)
        assert (await both_ways(client, endpoint, **{endpoint.limit: LIMITS[endpoint.path], "temperature": 0})).text


async def read_officially(client, endpoint):
    """The stream read with the client of its API; a response that failed is no answer."""
    if endpoint.path == MESSAGES:
        transport = anthropic.DefaultAsyncHttpxClient(trust_env=False)
        api = anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="-", http_client=transport, max_retries=0)
        async with api, api.messages.stream(**endpoint.body) as stream:
            async for _ in stream:
                pass
        return
    api = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="-", http_client=client, max_retries=0)
    create = {CHAT: api.chat.completions.create, COMPLETIONS: api.completions.create, RESPONSES: api.responses.create}
    async for event in await create[endpoint.path](**endpoint.body, stream=True):
        assert getattr(event, "type", "") != "response.failed"


BAD_VALUES = [{"temperature": value} for value in (-1, 9, "hot", [])]
BAD_VALUES += [{"top_p": value} for value in (0, 1.5, "x")] + [{"top_k": -2}, {"stream": "yes"}, {"stream": 1}]


@EACH
async def test_a_bad_value_is_the_same_400_streamed_or_not(endpoint):
    bad = [*BAD_VALUES, *({endpoint.limit: value} for value in (-1, 0, 1.5, "5", True)), {endpoint.prompt: []}]
    async with serving(scripted_engine("an answer")) as client:
        for fields in bad:
            told = []
            for stream in (False, True):
                response = await client.post(endpoint.path, json=endpoint.body | {"stream": stream} | fields)
                assert response.status_code == 400, (fields, response.text)
                assert response.headers["content-type"] == "application/json"
                told.append(response.json()["error"]["message"])
            assert told[0] == told[1]
            assert next(iter(fields)).split("[")[0] in told[0]


@EACH
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"NaN"'])
async def test_what_is_no_number_is_refused(endpoint, value):
    raw = json.dumps(endpoint.body | {"temperature": "<value>"}).replace('"<value>"', value)
    async with serving(scripted_engine("an answer")) as client:
        response = await client.post(endpoint.path, content=raw, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert response.json()["error"]["message"]


# ---- what is counted and drawn


@EACH
async def test_usage_counts_what_was_reused_once_and_alike_streamed_or_not(endpoint):
    long = {"messages": [{"role": "user", "content": "word " * 40}]}
    body = endpoint.body | (long if endpoint.prompt == "messages" else {endpoint.prompt: "word " * 40})
    async with serving(scripted_engine("ok")) as client:
        cold, warm, streamed = [
            counted(endpoint, events_or_whole)
            for events_or_whole in [
                [(await client.post(endpoint.path, json=body)).json()],
                [(await client.post(endpoint.path, json=body)).json()],
                events(await client.post(endpoint.path, json=body | {"stream": True} | asked_for(endpoint))),
            ]
        ]
    assert cold[1] == 0
    assert 0 < warm[1] < warm[0]
    assert warm[1] == (warm[0] - 1) // 16 * 16
    assert streamed == warm == (cold[0], warm[1], cold[2])


def asked_for(endpoint):
    return {"stream_options": {"include_usage": True}} if endpoint.path in (CHAT, COMPLETIONS) else {}


def counted(endpoint, answers):
    """Tokens of the prompt, those of them that were reused, and of the output."""
    if endpoint.path == MESSAGES:
        first = answers[0].get("message", answers[0])["usage"]
        last = next((each["usage"] for each in answers if each.get("type") == "message_delta"), first)
        reused = first["cache_read_input_tokens"]
        return first["input_tokens"] + reused, reused, last["output_tokens"]
    usage = answers[-1].get("response", answers[-1])["usage"]
    if endpoint.path == RESPONSES:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
@EACH
async def test_a_form_is_kept_and_nothing_follows_it(endpoint):
    """Characters of several tokens, whose words the model would not say by itself."""
    schema = {"enum": ["😀ď", "𓀀"]}
    fields = {
        CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
        COMPLETIONS: {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
        MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        RESPONSES: {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
    }[endpoint.path]
    async with default_engine() as engine, model_client(engine) as client:
        answer = await both_ways(client, endpoint, model=MODEL, temperature=0, **fields, **{endpoint.limit: 40})
    assert json.loads(answer.text) in schema["enum"]
    assert answer.num_tokens < 20


@pytest.mark.parametrize("path", [MESSAGES, "/v1/messages/count_tokens"])
async def test_the_earlier_name_of_a_form_is_refused_and_not_ignored(path):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    body |= {"max_tokens": 9} if path == MESSAGES else {}
    body["output_format"] = {"type": "json_schema", "schema": {"type": "boolean"}}
    async with serving(scripted_engine("ok")) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400
    assert "output_config.format" in response.json()["error"]["message"]
