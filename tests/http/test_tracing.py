"""The SERVER span of every HTTP exchange: its parents, its children, its end."""

import contextlib
import socket
import time

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import msgspec
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import sampling
from opentelemetry.trace import SpanKind, StatusCode

from limelight.http import HttpSettings, create_app
from limelight.http.server_span import opening_attributes, parent_context
from limelight.testing import scripted_engine
from tests.cases.endpoints import ENDPOINTS
from tests.http.test_disconnect import idle, send_request, until
from tests.http.wire import CHAT, COMPLETIONS, chat_body, client_of, completion_body, running_server, serving, streamed
from tests.telemetry.recorded_spans import RecordedSpans, is_child, is_linked

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
RESUMABLE = {"x-limelight-resumable": "1"}
ASKED = [
    *((endpoint.path, endpoint.body | {"stream": stream}) for endpoint in ENDPOINTS for stream in (False, True)),
    (EMBEDDINGS, {"model": "scripted", "input": "hi"}),
]
"""Every endpoint that asks something of the engine, whole and streamed."""


@contextlib.asynccontextmanager
async def traced(script="hello", settings=None, recorded=None, **options):
    """A client of a server, its engine, and the spans of both."""
    spans = recorded or RecordedSpans()
    engine = scripted_engine(script, tracer_provider=spans.provider, **options)
    async with serving(engine, settings) as client:
        yield client, engine, spans


@pytest.mark.parametrize(("path", "body"), ASKED)
@pytest.mark.parametrize("headers", [{}, RESUMABLE], ids=["", "resumable"])
async def test_the_engines_span_is_a_child_of_its_exchanges_span(path, body, headers):
    async with traced() as (client, _, spans):
        answer = await client.post(path, json=body, headers=headers | {"x-request-id": "mine"})
        assert answer.status_code == 200
        await spans.until(lambda: len(spans.server) == len(spans.requests) == 1)
    [server], [request] = spans.server, spans.requests
    assert (server.name, server.parent) == (f"POST {path}", None)
    assert is_child(request, server)
    assert server.status.status_code is StatusCode.UNSET
    assert (
        server.attributes.items()
        >= {
            "http.request.method": "POST",
            "http.route": path,
            "url.path": path,
            "url.scheme": "http",
            "http.response.status_code": 200,
            "http.response.body.size": len(answer.content),
            "limelight.http_request.id": "mine",
            "limelight.owner": "anonymous",
        }.items()
    )
    assert request.attributes["limelight.http_request.id"] == "mine"
    assert request.attributes.get("gen_ai.request.stream", False) == body.get("stream", False)
    assert server.start_time <= request.start_time
    assert server.attributes["limelight.delivery.num_writes"] >= 1
    assert 0 < server.attributes["limelight.time_to_first_byte"] <= (server.end_time - server.start_time) / 1e9


async def test_several_prompts_are_siblings_below_one_span():
    async with traced() as (client, _, spans):
        await client.post(COMPLETIONS, json=completion_body(prompt=["a", "b", "c"]))
        await spans.until(lambda: len(spans.requests) == 3)
    [server] = spans.server
    assert all(is_child(request, server) for request in spans.requests)


async def test_a_resumed_stream_has_spans_of_its_own_that_are_linked_to_the_first():
    async with traced() as (client, _, spans):
        body = chat_body(stream=True)
        first = await client.post(CHAT, json=body, headers=RESUMABLE)
        stream_id = first.headers["x-limelight-stream"]
        again = await client.get(f"/v1/streams/{stream_id}")
        assert again.content == first.content
        await client.post(CHAT, json=body, headers={"last-event-id": f"{stream_id}:1"})
        await client.delete(f"/v1/streams/{stream_id}")
        await client.delete(f"/v1/streams/{stream_id}")
        await spans.until(lambda: len(spans.server) == 5)
    began, *later, lost = spans.server
    [request] = spans.requests
    assert is_child(request, began)
    assert [span.name for span in later] == [
        "GET /v1/streams/{stream_id}",
        f"POST {CHAT}",
        "DELETE /v1/streams/{stream_id}",
    ]
    assert all(is_linked(span, began) for span in later)
    assert not lost.links
    assert lost.attributes["error.type"] == "stream_gone"


async def test_a_response_in_the_background_belongs_to_the_request_that_began_it():
    async with traced() as (client, engine, spans):
        body = {"model": "scripted", "input": "hi", "background": True}
        response = (await client.post(RESPONSES, json=body)).json()
        await until(lambda: idle(engine))
        await client.get(f"{RESPONSES}/{response['id']}")
        await client.get(f"{RESPONSES}/{response['id']}?stream=true")
        await client.post(RESPONSES, json=body, headers={"last-event-id": f"{response['id']}:0"})
        await spans.until(lambda: len(spans.server) == 4)
    began, *later = spans.server
    [request] = spans.requests
    assert is_child(request, began)
    assert all(is_linked(span, began) for span in later)
    assert {span.name for span in later} == {f"GET {RESPONSES}/{{response_id}}", f"POST {RESPONSES}"}


REFUSED = [
    ("a wrong key", "POST", CHAT, {"authorization": "Bearer no"}, CHAT, 401, "invalid_api_key"),
    ("a foreign host", "GET", "/v1/models", {"host": "evil"}, "/v1/models", 403, "permission_denied"),
    ("no route", "GET", "/v1/secrets/17", {}, None, 404, "not_found"),
    ("a wrong method", "DELETE", CHAT, {}, None, 405, "method_not_allowed"),
    ("a long body", "POST", CHAT, {"x-pad": "x"}, CHAT, 413, "payload_too_large"),
    ("a form", "POST", CHAT, {"content-type": "text/plain"}, CHAT, 415, "unsupported_media_type"),
]


@pytest.mark.parametrize(
    ("method", "path", "headers", "route", "status", "code"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
async def test_what_never_reaches_the_engine_has_a_span(method, path, headers, route, status, code):
    settings = HttpSettings(api_keys={"ann": "right"}, allowed_hosts=("127.0.0.1",), max_body_bytes=1000)
    async with traced(settings=settings) as (client, engine, spans):
        content = b"x" * 2000 if status == 413 else b"{}"
        headers = {"authorization": "Bearer right", "content-type": "application/json"} | headers
        answer = await client.request(method, path, headers=headers, content=content)
        assert answer.status_code == status
        counted = dict(engine.telemetry.http.requests.values)
    [server] = spans.server
    assert server.name == (method if route is None else f"{method} {route}")
    assert server.attributes.get("http.route") == route
    assert server.attributes["http.response.status_code"] == status
    assert server.attributes["error.type"] == code
    assert server.status.status_code is StatusCode.UNSET, "it is the client's error"
    assert counted == {(route or "unmatched", method, str(status)): 1}


async def test_probes_and_files_of_pages_get_no_span_but_are_counted():
    paths = ["/health", "/livez", "/readyz", "/ping", "/version", "/load", "/", "/ui/app.js", "/docs", "/openapi.json"]
    paths += ["/metrics", "/v1/requests"]
    async with traced() as (client, engine, spans):
        for path in paths:
            assert (await client.get(path)).status_code == 200
        assert sum(engine.telemetry.http.requests.values.values()) == len(paths)
    assert spans.all == []


async def test_methods_of_the_clients_own_invention_are_one():
    spans = RecordedSpans()
    engine = scripted_engine(tracer_provider=spans.provider)
    async with engine:
        await create_app(engine)(_scope() | {"method": "BREW"}, anyio.sleep_forever, _nobody)
        assert engine.telemetry.http.requests.values == {("unmatched", "_OTHER", "405"): 1}
    [server] = spans.server
    assert server.name == "HTTP"
    assert server.attributes["http.request.method"] == "_OTHER"
    assert server.attributes["http.request.method_original"] == "BREW"


def test_what_no_exporter_could_encode_is_replaced_and_what_is_long_is_cut():
    agent = (b"user-agent", b"\xff" * 5000)
    scope = _scope() | {"path": "/\udcff" + "x" * 5000, "method": "B" * 5000, "headers": [agent]}
    attributes = opening_attributes(scope, None)
    texts = [value for value in attributes.values() if isinstance(value, str)]
    assert max(map(len, texts)) < 400
    assert all(text.encode() for text in texts)
    assert attributes["url.path"].startswith("/?x")


async def test_samplers_see_method_path_and_route():
    class Seeing(sampling.Sampler):
        def __init__(self):
            self.seen = []

        def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, state=None):
            if kind is SpanKind.SERVER:
                self.seen.append((name, dict(attributes)))
            return sampling.SamplingResult(sampling.Decision.DROP)

        def get_description(self):
            return "seeing"

    sampler = Seeing()
    async with traced(recorded=RecordedSpans(sampler=sampler)) as (client, _, spans):
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        await client.get("/v1/streams/abc")
    assert spans.all == []
    (one, attributes), (other, further) = sampler.seen
    assert (one, other) == (f"POST {CHAT}", "GET /v1/streams/{stream_id}")
    assert attributes["http.route"] == attributes["url.path"] == CHAT
    assert (further["http.route"], further["url.path"]) == ("/v1/streams/{stream_id}", "/v1/streams/abc")
    assert attributes["server.address"] == "127.0.0.1"


async def test_the_span_of_an_instrumented_host_is_the_parent():
    spans = RecordedSpans()
    engine = scripted_engine("hello", tracer_provider=spans.provider)
    host = FastAPI()
    host.mount("/llm", create_app(engine))
    FastAPIInstrumentor.instrument_app(host, tracer_provider=spans.provider, exclude_spans=["send", "receive"])
    stray = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    async with engine, client_of(host) as client:
        assert (await client.post(f"/llm{CHAT}", json=chat_body(), headers=stray)).status_code == 200
        await spans.until(lambda: len(spans.server) == 2)
    [ours] = (span for span in spans.server if span.instrumentation_scope.name == "limelight")
    [theirs] = (span for span in spans.server if span is not ours)
    [request] = spans.requests
    assert ours.name == f"POST /llm{CHAT}"
    assert is_child(ours, theirs)
    assert is_child(request, ours)
    assert format(theirs.context.trace_id, "032x") == "a" * 32


async def test_an_error_after_the_status_line_is_an_error():
    def script(turn):
        if turn.number == 3:
            raise ZeroDivisionError
        return 97

    for headers in ({}, RESUMABLE):
        async with traced(script) as (client, _, spans):
            answer = await client.post(CHAT, json=chat_body(stream=True), headers=headers)
            assert "error" in streamed(answer)[-1] if not headers else b"error" in answer.content
        [server] = spans.server
        assert server.attributes["http.response.status_code"] == 200
        assert server.attributes["error.type"] == "step_failed"
        assert server.status.status_code is StatusCode.ERROR


async def test_a_bug_of_an_answer_is_an_error_and_says_nothing_of_its_message(monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("limelight.http.chat.chat_completion", broken)
    async with traced() as (client, _, spans):
        assert (await client.post(CHAT, json=chat_body())).status_code == 500
    [server] = spans.server
    assert server.status.status_code is StatusCode.ERROR
    assert server.attributes["error.type"] == "internal_error"
    assert "secret" not in server.to_json()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_told_apart_from_an_error(stream):
    spans = RecordedSpans()
    engine = scripted_engine(step_seconds=0.001, tracer_provider=spans.provider)
    async with engine, running_server(create_app(engine)) as port:
        client = await send_request(port, CHAT, chat_body(stream=stream, ignore_eos=True, max_tokens=2000))
        if stream:
            await client.receive()
        await until(lambda: engine.statistics().num_running > 0)
        await client.aclose()
        await spans.until(lambda: bool(spans.server and spans.requests))
        assert list(engine.telemetry.http.requests.values) == [(CHAT, "POST", "200" if stream else "499")]
    [server], [request] = spans.server, spans.requests
    assert server.attributes["error.type"] == "request_cancelled"
    assert server.attributes["limelight.ending"] == request.attributes["limelight.ending"] == "aborted"
    assert server.attributes.get("http.response.status_code") == (200 if stream else None)
    assert server.status.status_code is StatusCode.UNSET
    assert is_child(request, server)


async def test_an_exchange_whose_task_is_cancelled_ends_its_span_once():
    spans = RecordedSpans()
    engine = scripted_engine(step_seconds=0.001, tracer_provider=spans.provider)
    messages = [{"type": "http.request", "body": msgspec.json.encode(chat_body(stream=True)), "more_body": False}]

    async def receive():
        return messages.pop() if messages else await anyio.sleep_forever()

    async with engine:
        with anyio.CancelScope() as scope:
            sent = 0

            async def send(message):
                nonlocal sent
                sent += 1
                if sent == 3:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()

            await create_app(engine)(_scope(), receive, send)
        await spans.until(lambda: bool(spans.server and spans.requests))
    [server], [request] = spans.server, spans.requests
    assert is_child(request, server)
    assert server.attributes["error.type"] == "request_cancelled"
    assert server.attributes["limelight.delivery.num_writes"] == 2


async def test_waiting_for_the_socket_is_measured():
    """At least as long as the sender itself says."""
    spans = RecordedSpans()
    engine = scripted_engine(step_seconds=0.005, tracer_provider=spans.provider)
    body = msgspec.json.encode(chat_body(stream=True, max_tokens=10))
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    waited = []
    live = []

    async def receive():
        return messages.pop() if messages else await anyio.sleep_forever()

    async with engine:

        async def send(message):
            live.extend(timeline.delivery.waiting_since for timeline in engine.telemetry.live.values())
            began_at = time.monotonic()
            await anyio.sleep(0.01)
            waited.append(time.monotonic() - began_at)

        await create_app(engine)(_scope(), receive, send)
    [server] = spans.server
    assert any(since is not None for since in live), "who looks at live requests sees it"
    assert server.attributes["limelight.delivery.seconds"] >= sum(waited[1:])
    assert server.attributes["limelight.delivery.longest_seconds"] >= max(waited[1:])


async def _nobody(message):
    """Takes what is sent."""


def _scope():
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }


async def test_a_stream_that_nobody_comes_back_for_expires_and_one_that_is_deleted_is_aborted():
    spans = RecordedSpans()
    engine = scripted_engine(step_seconds=0.001, tracer_provider=spans.provider)
    body = chat_body(stream=True, ignore_eos=True, max_tokens=2000)
    async with engine, client_of(create_app(engine)) as client:
        async with client.stream("POST", CHAT, json=body, headers=RESUMABLE | {"x-limelight-grace": "0"}) as answer:
            await anext(answer.aiter_bytes())
        await spans.until(lambda: len(spans.requests) == 1)
        async with client.stream("POST", CHAT, json=body, headers=RESUMABLE) as answer:
            parts = answer.aiter_bytes()
            await anext(parts)
            await client.delete(f"/v1/streams/{answer.headers['x-limelight-stream']}")
            async for _ in parts:
                pass
        await spans.until(lambda: len(spans.requests) == 2)
    assert [request.attributes["limelight.ending"] for request in spans.requests] == ["expired", "aborted"]
    left, deleted = (server for server in spans.server if server.name == f"POST {CHAT}")
    assert left.attributes["limelight.ending"] == deleted.attributes["limelight.ending"] == "aborted"
    assert deleted.attributes["error.type"] == "request_cancelled"
    assert deleted.status.status_code is StatusCode.UNSET


class BrokenProvider(trace.TracerProvider):
    """Its tracer raises, or its spans do in the methods that are named."""

    def __init__(self, methods):
        self._methods = methods
        self.num_open = 0

    def _end(self, **_options):
        self.num_open -= 1

    def get_tracer(self, *arguments, **options):
        provider = self

        class BrokenTracer(trace.NoOpTracer):
            def start_span(self, *arguments, **options):
                if "start_span" in provider._methods:
                    raise RuntimeError
                provider.num_open += 1
                return broken_span(provider._methods, end=provider._end)

        return BrokenTracer()


def broken_span(methods, **overridden):
    """A span that raises in these methods."""

    def fail(*arguments, **options):
        raise RuntimeError

    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    span = trace.NonRecordingSpan(context)
    span.is_recording = lambda: True
    for method, function in (overridden | dict.fromkeys(methods, fail)).items():
        setattr(span, method, function)
    return span


BREAKAGES = [
    ["start_span"],
    ["end", "set_attribute"],
    ["get_span_context"],
    ["is_recording"],
    ["set_attributes"],
    ["add_event", "add_link", "set_status"],
]


@pytest.mark.parametrize("methods", BREAKAGES, ids="-".join)
async def test_a_tracer_that_raises_harms_no_answer(methods):
    provider = BrokenProvider(methods)
    engine = scripted_engine("hello", tracer_provider=provider)
    async with serving(engine) as client:
        for _ in range(2):
            assert (await client.post(CHAT, json=chat_body())).json()["choices"][0]["message"]["content"] == "hello"
        assert (await client.get("/nowhere")).status_code == 404
        resumable = await client.post(CHAT, json=chat_body(stream=True), headers=RESUMABLE)
        again = await client.get(f"/v1/streams/{resumable.headers['x-limelight-stream']}")
        assert again.text == resumable.text
        background = {"model": "scripted", "input": "hi", "background": True}
        assert (await client.post(RESPONSES, json=background)).status_code == 200
        assert sum(engine.telemetry.http.requests.values.values()) == 6
    assert provider.num_open == 0 or "end" in methods


@pytest.mark.parametrize("methods", BREAKAGES, ids="-".join)
async def test_a_span_of_the_host_that_raises_harms_no_answer(methods):
    async with scripted_engine("hello") as engine:
        transport = httpx.ASGITransport(create_app(engine))
        with trace.use_span(broken_span(methods), record_exception=False, set_status_on_exception=False):
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                assert (await client.post(CHAT, json=chat_body())).status_code == 200


def test_a_current_span_wins_over_headers_and_without_either_there_is_no_parent():
    parent = (b"TraceParent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")
    header = [parent, (b"tracestate", b"x=1"), (b"TRACESTATE", b"y=2")]
    assert not trace.get_current_span(parent_context([])).get_span_context().is_valid
    remote = trace.get_current_span(parent_context(header)).get_span_context()
    assert (format(remote.trace_id, "032x"), format(remote.span_id, "016x")) == ("a" * 32, "b" * 16)
    assert remote.trace_state.to_header() == "x=1,y=2"
    assert not trace.get_current_span(parent_context([*header, parent])).get_span_context().is_valid
    with trace.use_span(RecordedSpans().provider.get_tracer("host").start_span("host")) as host:
        assert trace.get_current_span(parent_context(header)) is host


NEARLY = rb"[0-9a-fA-F]{1,3}-[0-9a-f]{30,34}-[0-9a-f]{14,18}-[0-9a-f]{1,3}"


@given(st.binary(max_size=80) | st.from_regex(NEARLY, fullmatch=True))
def test_whatever_stands_in_traceparent_is_a_parent_or_ignored(value):
    found = trace.get_current_span(parent_context([(b"traceparent", value)])).get_span_context()
    if found.is_valid:
        assert format(found.trace_id, "032x").encode() in value.lower()


async def test_times_agree_with_a_clock_in_the_client():
    """Both clocks are the machine's monotonic one; of many answers the best is looked at, as machines may be busy."""
    spans = RecordedSpans()
    engine = scripted_engine(step_seconds=0.01, tracer_provider=spans.provider)
    body = msgspec.json.encode(chat_body(stream=True, ignore_eos=True, max_tokens=3))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

    def ask(port):
        """Seconds until the first byte, and until the last."""
        with socket.create_connection(("127.0.0.1", port)) as connection:
            began_at = time.perf_counter()
            connection.sendall(head.encode() + body)
            received = connection.recv(65536)
            first_at = time.perf_counter()
            while b"[DONE]" not in received:
                received += connection.recv(65536)
            return first_at - began_at, time.perf_counter() - began_at

    async with engine, running_server(create_app(engine)) as port:
        taken = [await anyio.to_thread.run_sync(ask, port) for _ in range(20)]
        await spans.until(lambda: len(spans.server) == len(spans.requests) == 20)
    late_first, late_last = [], []
    for (first, last), server, request in zip(taken, spans.server, spans.requests, strict=True):
        sent = server.attributes["limelight.delivery.longest_seconds"]
        token = request.attributes["limelight.time_to_first_token"]
        assert 0.01 < token <= server.attributes["limelight.time_to_first_byte"] <= first
        late_first.append(first - sent - token)
        late_last.append(last - (server.end_time - server.start_time) / 1e9)
    assert abs(min(late_first, key=abs)) < 0.005
    assert abs(min(late_last, key=abs)) < 0.005
