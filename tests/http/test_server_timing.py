"""How long the parts of a request took, as its answer tells: the header, and `timings` for those who ask."""

import json
import re

import anthropic
import openai
import pytest

from limelight.http import HttpSettings
from limelight.http.server_timing import server_timing
from limelight.testing import scripted_engine
from tests.cases.endpoints import ENDPOINTS, events
from tests.http.test_tracing import ASKED, EMBEDDINGS, RESUMABLE, traced
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, serving, streamed
from tests.telemetry.recorded_spans import seconds

pytestmark = pytest.mark.anyio

PARTS = ("admission", "tokenize", "queue", "prefill")
"""In the header, and of the spans."""
MILLISECOND = 1.0


def told(answer):
    """Milliseconds by name."""
    header = answer.headers["server-timing"]
    assert re.fullmatch(r"[a-z]+;dur=\d+\.\d{3}(, [a-z]+;dur=\d+\.\d{3})*", header)
    return {name: float(value) for name, value in (entry.split(";dur=") for entry in header.split(", "))}


def assert_agree(parts, request, below):
    """`parts`, in milliseconds, are those of the span and of its children."""
    expected = {name: 1e3 * seconds(span) for name, span in below.items() if name in PARTS}
    assert {name: parts[name] for name in PARTS if name in parts} == pytest.approx(
        {name: expected[name] for name in PARTS if name in parts}, abs=MILLISECOND
    )
    if "decode" in parts:  # its span goes on until the last text has been told
        span = below["decode"]
        [last_at] = [event.timestamp for event in span.events if event.name == "last token"]
        assert parts["decode"] == pytest.approx((last_at - span.start_time) / 1e6, abs=MILLISECOND)
    if "total" in parts:
        assert parts["total"] == pytest.approx(1e3 * seconds(request), abs=MILLISECOND)
    if "ttft" in parts:
        first = 1e3 * request.attributes["limelight.time_to_first_token"]
        assert parts["ttft"] == pytest.approx(first, abs=MILLISECOND)


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_the_header_agrees_with_the_span(path, body):
    async with traced(step_seconds=0.002) as (client, _, spans):
        answer = await client.post(path, json=body)
        await spans.until(lambda: len(spans.requests) == 1)
    [request] = spans.requests
    parts = told(answer)
    if path == EMBEDDINGS:
        expected = {"admission", "tokenize", "queue", "total"}
    elif body.get("stream"):
        expected = {"admission", "tokenize", "queue", "prefill", "ttft"}  # `decode` would be of what has come by then
    else:
        expected = {"admission", "tokenize", "queue", "prefill", "ttft", "decode", "total"}
    assert parts.keys() == expected
    assert_agree(parts, request, spans.below(request))


async def test_a_stream_whose_status_line_does_not_wait_tells_what_is_known():
    async with traced(step_seconds=0.002, settings=HttpSettings(header_wait_seconds=0)) as (client, _, _spans):
        answer = await client.post(CHAT, json=chat_body(stream=True))
    assert "admission" in told(answer)
    assert "ttft" not in told(answer)


async def test_recorded_streams_and_background_responses_tell_it_where_they_began():
    async with serving(scripted_engine("hello")) as client:
        first = await client.post(CHAT, json=chat_body(stream=True), headers=RESUMABLE)
        again = await client.get(f"/v1/streams/{first.headers['x-limelight-stream']}")
        background = await client.post("/v1/responses", json={"model": "scripted", "input": "hi", "background": True})
    assert "ttft" in told(first)
    assert "server-timing" not in again.headers
    assert "admission" in told(background)


async def test_errors_tell_what_is_known():
    async with serving(scripted_engine("hello", max_model_len=64)) as client:
        invalid = await client.post(CHAT, json=chat_body(max_tokens=0.5))
        unknown = await client.post(CHAT, json=chat_body(model="another"))
        long = await client.post(COMPLETIONS, json=completion_body(prompt="x" * 100))
        elsewhere = await client.get("/v1/models")
    assert [answer.status_code for answer in (invalid, unknown, long)] == [400, 404, 400]
    assert told(invalid).keys() == told(unknown).keys() == {"total"}
    assert told(long).keys() == {"admission", "tokenize", "total"}
    assert "server-timing" not in elsewhere.headers


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((), "http://page", None),
        (("http://page",), "http://page", "http://page"),
        (("http://page",), "http://other", None),
        (("*",), "http://page", "*"),
        (("http://page",), None, None),
    ],
)
async def test_pages_of_allowed_origins_can_read_it(origins, origin, allowed):
    async with serving(scripted_engine("hello"), HttpSettings(cors_origins=origins)) as client:
        answer = await client.post(CHAT, json=chat_body(), headers={} if origin is None else {"origin": origin})
    assert answer.headers.get("timing-allow-origin") == allowed
    if allowed:
        assert "server-timing" in answer.headers["access-control-expose-headers"]


def timings_of(answer):
    """The one `timings` object of an answer, wherever it stands, and where."""
    if answer.headers["content-type"].startswith("application/json"):
        return answer.json()["timings"]
    found = [event.get("response", event) for event in events(answer)]
    [timings] = [event["timings"] for event in found if "timings" in event]
    return timings


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.id)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [{}, RESUMABLE], ids=["", "resumable"])
async def test_timings_come_with_the_answer_for_those_who_ask(endpoint, stream, headers):
    async with traced(step_seconds=0.001) as (client, _, spans):
        body = endpoint.body | {"stream": stream}
        plain = await client.post(endpoint.path, json=body, headers=headers)
        assert "timings" not in plain.text
        answer = await client.post(endpoint.path, json=body | {"return_timings": True}, headers=headers)
        await spans.until(lambda: len(spans.requests) == 2)
    request = spans.requests[-1]
    timings = timings_of(answer)
    names = {"ttft": "time_to_first_token"}
    parts = {name: timings[f"{names.get(name, name)}_ms"] for name in (*PARTS, "ttft", "decode", "total")}
    assert_agree(parts, request, spans.below(request))
    num_tokens = request.attributes["gen_ai.usage.output_tokens"]
    assert timings["per_token_ms"] == pytest.approx(timings["decode_ms"] / (num_tokens - 1), abs=0.01)
    assert timings["cached_tokens"] == request.attributes["gen_ai.usage.cache_read.input_tokens"]
    if not stream:
        assert {name: told(answer)[name] for name in parts} == pytest.approx(parts, abs=0.001)


async def test_in_a_stream_they_stand_beside_the_usage_in_the_last_chunk():
    async with serving(scripted_engine("hello")) as client:
        for path, body in ((CHAT, chat_body(stream=True)), (COMPLETIONS, completion_body(stream=True))):
            body |= {"return_timings": True, "stream_options": {"include_usage": True}}
            *chunks, last = streamed(await client.post(path, json=body))
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 6
            assert last["timings"]["total_ms"] > 0
            assert not any("timings" in chunk for chunk in chunks)


async def test_of_several_prompts_the_longest_times_are_told():
    async with traced(step_seconds=0.002, max_num_seqs=1) as (client, _, spans):
        body = completion_body(prompt=["a", "b", "c"], return_timings=True)
        answer = await client.post(COMPLETIONS, json=body)
        await spans.until(lambda: len(spans.requests) == 3)
    queues = [1e3 * seconds(spans.below(request)["queue"]) for request in spans.requests]
    totals = [1e3 * seconds(request) for request in spans.requests]
    timings = answer.json()["timings"]
    assert timings["queue_ms"] == pytest.approx(max(queues), abs=MILLISECOND)
    assert timings["total_ms"] == pytest.approx(max(totals), abs=MILLISECOND)
    assert told(answer)["total"] == pytest.approx(timings["total_ms"], abs=0.001)


async def test_the_official_clients_pass_it_on():
    extra = {"extra_body": {"return_timings": True}}
    async with serving(scripted_engine("hello")) as client:
        quiet = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none", http_client=quiet) as api:
            chat = await api.chat.completions.create(model="scripted", messages=HI, **extra)
            assert chat.timings["total_ms"] > 0
            async with api.chat.completions.stream(model="scripted", messages=HI, **extra) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "hello"
            response = await api.responses.create(model="scripted", input="hi", **extra)
            assert response.timings["total_ms"] > 0
        quiet = anthropic.DefaultAsyncHttpxClient(trust_env=False)
        async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="none", http_client=quiet) as api:
            message = await api.messages.create(model="scripted", messages=HI, max_tokens=9, **extra)
            assert message.timings["total_ms"] > 0
            async with api.messages.stream(model="scripted", messages=HI, max_tokens=9, **extra) as stream:
                assert await stream.get_final_text() == "hello"


async def test_the_name_that_llama_cpp_has_for_it_is_refused_with_ours():
    async with serving(scripted_engine("hello")) as client:
        answer = await client.post(CHAT, content=json.dumps(chat_body(timings_per_token=True)))
    assert "return_timings" in answer.json()["error"]["message"]


def test_without_a_request_of_the_engine_the_total_is_all_that_is_known():
    assert server_timing([], 0.0123456) == b"total;dur=12.346"
