"""What went wrong with traces elsewhere: spans that leak, stall, are missing, or hang below the wrong parent."""

import gc
import logging
import threading
from collections import Counter

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode

from limelight.generation import SamplingParams
from limelight.http import create_app
from limelight.testing import scripted_engine
from tests.cases.endpoints import ENDPOINTS
from tests.http.test_disconnect import idle, until
from tests.http.wire import CHAT, COMPLETIONS, chat_body, client_of, completion_body, serving
from tests.telemetry.otlp_receiver import OtlpReceiver
from tests.telemetry.recorded_spans import RecordedSpans, is_child

pytestmark = pytest.mark.anyio

ENDLESS = {"ignore_eos": True, "max_tokens": 500}
LONG = SamplingParams(max_tokens=500, ignore_eos=True)


async def first_chunks(client, path, body, number=2):
    """Reads `number` frames of a stream, and leaves."""
    async with client.stream("POST", path, json=body) as answer:
        lines = answer.aiter_lines()
        for _ in range(2 * number):
            await anext(lines)


# ---- B122


async def test_streams_that_are_cut_end_their_spans_once_and_attach_nothing(caplog):
    caplog.set_level(logging.DEBUG)
    spans = RecordedSpans()
    engine = scripted_engine(step_seconds=0.001, num_pages=2000, tracer_provider=spans.provider)
    async with serving(engine) as client:
        for number in range(50):
            path = ENDPOINTS[number % len(ENDPOINTS)].path
            limit = {"max_output_tokens": 500} if path == "/v1/responses" else {"max_tokens": 500}
            await first_chunks(client, path, ENDPOINTS[number % len(ENDPOINTS)].body | limit | {"stream": True})
        await spans.until(lambda: len(spans.server) == len(spans.requests) == 50)
        await until(lambda: idle(engine))
        gc.collect()
    assert "detach" not in caplog.text
    assert not any("span" in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert max(Counter(span.context.span_id for span in spans.all).values()) == 1
    for server, request in _pairs(spans):
        assert server.attributes["error.type"] == "request_cancelled"
        assert server.attributes["limelight.ending"] == request.attributes["limelight.ending"] == "aborted"
        assert server.status.status_code is request.status.status_code is StatusCode.UNSET


async def test_streams_that_are_cut_in_python_leave_the_callers_span_current(caplog):
    spans = RecordedSpans()
    tracer = spans.provider.get_tracer("host")
    async with scripted_engine(tracer_provider=spans.provider) as engine:
        for number in range(50):
            with tracer.start_as_current_span(f"host {number}") as host:
                async with engine.stream("hi", LONG) as stream:
                    taken = 0
                    async for _ in stream:
                        assert trace.get_current_span() is host
                        taken += 1
                        if taken == 2:
                            break
                assert trace.get_current_span() is host
        with anyio.CancelScope() as scope, tracer.start_as_current_span("cancelled") as host:
            async with engine.stream("hi", LONG) as stream:
                await anext(stream)
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert not trace.get_current_span().get_span_context().is_valid
        await spans.until(lambda: len(spans.requests) == 51)
        gc.collect()
    assert "detach" not in caplog.text
    hosts = {span.context.span_id: span for span in spans.all if span.instrumentation_scope.name == "host"}
    assert sorted(hosts[request.parent.span_id].name for request in spans.requests) == sorted(
        [f"host {number}" for number in range(50)] + ["cancelled"]
    )
    assert {request.attributes["limelight.ending"] for request in spans.requests} == {"aborted"}


# ---- B124


async def test_a_collector_that_does_not_answer_stalls_no_stream_and_loses_the_oldest_spans(caplog):
    """The collector takes 5 seconds unless all streams have ended: who waited for it would take minutes."""
    answering = threading.Event()

    class HeldUp(OTLPSpanExporter):
        def export(self, spans):
            answering.wait(5)
            return super().export(spans)

    receiver = OtlpReceiver()
    provider = TracerProvider()
    processor = BatchSpanProcessor(
        HeldUp(receiver.traces_url), max_queue_size=64, max_export_batch_size=16, schedule_delay_millis=10
    )
    provider.add_span_processor(processor)
    try:
        async with serving(scripted_engine(tracer_provider=provider)) as client:
            texts = []

            async def ask():
                body = chat_body(stream=True, max_tokens=50, ignore_eos=True)
                texts.append((await client.post(CHAT, json=body)).text)

            with anyio.fail_after(60):
                for _ in range(3):
                    async with anyio.create_task_group() as tasks:
                        for _ in range(10):
                            tasks.start_soon(ask)
            assert len(texts) == 30
            assert all(text.count('"content"') > 10 for text in texts)
        assert "Queue" in caplog.text, "what is lost is told"
    finally:
        answering.set()
        await anyio.to_thread.run_sync(provider.shutdown)
        receiver.close()
    made = 30 * 7
    assert 0 < len(receiver.spans) < made


# ---- B125


async def test_each_kind_of_ending_has_a_server_span_with_its_status():
    def script(turn):
        if turn.prompt[-1] == ord("!"):
            raise ZeroDivisionError
        return 97

    spans = RecordedSpans()
    engine = scripted_engine(
        script, num_pages=12, step_seconds=0.001, enable_prefix_caching=False, tracer_provider=spans.provider
    )
    body = completion_body(max_tokens=100, ignore_eos=True)
    kinds = {}

    def new(kind):
        [kinds[kind]] = [span for span in spans.server if span not in kinds.values()]

    async with serving(engine) as client:
        assert (await client.post(COMPLETIONS, json=body)).status_code == 200
        new("ok")
        assert (await client.post(COMPLETIONS, json=body | {"max_tokens": -1})).status_code == 400
        new("invalid")
        assert (await client.post(COMPLETIONS, json=body | {"model": "another"})).status_code == 404
        new("unknown model")
        await first_chunks(client, COMPLETIONS, body | {"stream": True})
        await until(lambda: idle(engine))
        new("left")
        assert (await client.post(COMPLETIONS, json=body | {"prompt": "!"})).status_code == 500
        new("failed")
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: client.post(COMPLETIONS, json=body))
        assert engine.statistics().num_preemptions > 0
    preempted = [request for request in spans.requests if request.attributes["limelight.num_preemptions"]]
    [kinds["preempted"], *_] = [server for server in spans.server if is_child(preempted[0], server)]
    seen = {
        kind: (
            span.attributes.get("http.response.status_code"),
            span.attributes.get("error.type"),
            span.attributes.get("limelight.ending"),
            span.status.status_code,
        )
        for kind, span in kinds.items()
    }
    assert seen == {
        "ok": (200, None, None, StatusCode.UNSET),
        "invalid": (400, "invalid_value", None, StatusCode.UNSET),
        "unknown model": (404, "model_not_found", None, StatusCode.UNSET),
        "left": (200, "request_cancelled", "aborted", StatusCode.UNSET),
        "failed": (500, "step_failed", None, StatusCode.ERROR),
        "preempted": (200, None, None, StatusCode.UNSET),
    }


# ---- B126

ABSENT = [{}, {"traceparent": "hello"}, {"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"}, {"tracestate": "x=1"}]
"""Headers that name no parent."""


async def test_concurrent_requests_keep_to_their_own_traces():
    spans = RecordedSpans()
    engine = scripted_engine("hello", step_seconds=0.001, tracer_provider=spans.provider)
    asked = {}
    for number in range(20):
        kind = number % 5
        trace_id, span_id = format(number + 1, "032x"), format(number + 1, "016x")
        flag = "00" if kind == 3 else "01"
        name = "TRACEPARENT" if kind == 1 else "traceparent"
        headers = {name: f"00-{trace_id}-{span_id}-{flag}"} | ({"TraceState": "vendor=1"} if kind == 2 else {})
        asked[f"r{number}"] = ABSENT[number // 5] if kind == 4 else headers
    async with engine, client_of(create_app(engine)) as client:

        async def ask(name, headers):
            path, body = (CHAT, chat_body()) if name in ("r0", "r5") else (COMPLETIONS, completion_body())
            answer = await client.post(path, json=body, headers=headers | {"x-request-id": name})
            assert answer.status_code == 200

        async with anyio.create_task_group() as tasks:
            for name, headers in asked.items():
                tasks.start_soon(ask, name, headers)
        unsampled = {name for name, headers in asked.items() if headers.get("traceparent", "").endswith("-00")}
        await spans.until(lambda: len(spans.requests) == len(spans.server) == 20 - len(unsampled))
    pairs = {server.attributes["limelight.http_request.id"]: (server, request) for server, request in _pairs(spans)}
    assert pairs.keys() == asked.keys() - unsampled
    assert len(unsampled) == 4
    roots = []
    for name, (server, request) in pairs.items():
        assert request.attributes["limelight.http_request.id"] == name
        headers = {key.lower(): value for key, value in asked[name].items()}
        if asked[name] in ABSENT:
            assert server.parent is None
            roots.append(server.context.trace_id)
            assert not server.context.trace_state
        else:
            _, trace_id, span_id, _ = headers["traceparent"].split("-")
            assert format(server.context.trace_id, "032x") == trace_id
            assert format(server.parent.span_id, "016x") == span_id
            assert server.parent.is_remote
            assert request.context.trace_state.to_header() == headers.get("tracestate", "")
    assert len(set(roots)) == len(roots) == 4


def _pairs(spans):
    """Every SERVER span with the one request of the engine's below it."""
    for server in spans.server:
        [request] = [request for request in spans.requests if is_child(request, server)]
        yield server, request
