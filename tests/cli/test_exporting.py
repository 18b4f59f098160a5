"""Spans on their way to a collector: counted one by one, with real sockets of every kind at the other end."""

import logging
import os
import re
import signal

import anyio
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from prometheus_client import CollectorRegistry, generate_latest

from limelight.cli import exporting, telemetry
from limelight.cli.exporting import Exporting
from limelight.cli.otlp_session import NotedSession, reason_of
from limelight.cli.span_delivery import SECONDS_BETWEEN_LINES, SpanDelivery, Trouble
from limelight.cli.telemetry import ExportSettings, export_settings, observed_engine
from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.generation import SamplingParams
from limelight.testing import babble, scripted_model
from tests.cli.collectors import FOREVER, canned, closed_port
from tests.telemetry.otlp_receiver import attributes_of, otlp_receiver

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def settings_of(endpoint: str | None = None, **variables: str) -> ExportSettings:
    settings = export_settings(endpoint, variables)
    assert settings is not None
    return settings


# ---- deliveries, counted


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_log_tells_of_losses_once_then_each_minute_and_of_their_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    trouble = Trouble("spans", "http://a", clock)
    trouble.over()
    for _ in range(100):
        trouble.lost(10, "connection refused")
        clock.now += SECONDS_BETWEEN_LINES / 90
    trouble.over()
    trouble.over()
    assert [record.getMessage() for record in caplog.records] == [
        "spans cannot be delivered to http://a: connection refused; they are dropped until they can",
        "900 spans could not be delivered to http://a: connection refused",
        "spans are delivered to http://a again",
    ]


@given(
    st.integers(1, 20), st.lists(st.tuples(st.sampled_from(["end", "take", "give"]), st.integers(1, 8)), max_size=60)
)
def test_every_span_is_counted_once(queue_size: int, moves: list[tuple[str, int]]) -> None:
    delivery = SpanDelivery(queue_size, Trouble("spans", "http://a"))
    queue, taken = 0, []
    for move, number in moves:
        if move == "end":
            for _ in range(number):
                queue += delivery.admit()
                assert queue <= queue_size
        elif move == "take" and queue:
            taken.append(min(queue, number))
            queue -= taken[-1]
            delivery.begin(taken[-1])
        elif move == "give" and taken:
            whole = taken.pop()
            failed = min(number // 2, whole)
            delivery.end(whole - failed, failed, "why")
    waiting = queue + sum(taken)
    assert delivery.num_ended == delivery.num_exported + delivery.num_failed + delivery.num_dropped + waiting
    assert (delivery.summary("why") is None) == (delivery.num_ended == delivery.num_exported)


# ---- collectors


def end_spans(exporter: Exporting, number: int) -> None:
    assert exporter.tracer_provider is not None
    tracer = exporter.tracer_provider.get_tracer("test")
    for _ in range(number):
        tracer.start_span("span").end()


def only_traces(endpoint: str, **variables: str) -> Exporting:
    return Exporting(settings_of(endpoint, OTEL_METRICS_EXPORTER="none", **variables))


def counts(exporter: Exporting) -> tuple[int, int, int, int]:
    delivery = exporter.delivery
    assert delivery is not None
    return delivery.num_ended, delivery.num_exported, delivery.num_failed, delivery.num_dropped


async def test_a_living_collector_gets_every_span_with_headers_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=lights,authorization=Bearer%20token")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=9")
    with otlp_receiver() as receiver:
        exporter = only_traces(receiver.url)
        end_spans(exporter, 200)
        assert await exporter.close() is None
        assert len(receiver.spans) == 200
        assert max(len(batch.resource_spans[0].scope_spans[0].spans) for batch in receiver.traces) <= 64
        assert receiver.headers[0]["authorization"] == "Bearer token"
        resource = attributes_of(receiver.traces[0].resource_spans[0].resource.attributes)
    assert counts(exporter) == (200, 200, 0, 0)
    assert resource["service.name"] == "limelight"
    assert (resource["service.version"], resource["deployment.environment.name"]) == ("9", "test")
    assert resource["service.instance.id"]


async def test_a_header_that_is_none_is_told_without_its_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "secret-key,x-team=lights")
    with otlp_receiver() as receiver:
        exporter = only_traces(receiver.url)
        end_spans(exporter, 1)
        assert await exporter.close() is None
        assert receiver.headers[0]["x-team"] == "lights"
    assert "a header in OTEL_EXPORTER_OTLP_HEADERS" in caplog.text
    assert "secret-key" not in caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "-1", "OTEL_SPAN_EVENT_COUNT_LIMIT must be a non-negative integer"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "many", "OTEL_ATTRIBUTE_COUNT_LIMIT must be"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "some", "Unknown exemplar filter 'some'"),
        ("OTEL_PYTHON_TRACER_PROVIDER", "unknown", "names what is not installed"),
    ],
)
async def test_a_variable_that_the_sdk_refuses_is_told_in_one_line(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"OpenTelemetry cannot be set up: .*{reason}"):
        async with telemetry.exporting(settings_of("http://a"), print):
            pass


async def test_spans_that_are_not_sampled_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with otlp_receiver() as receiver:
        exporter = only_traces(receiver.url)
        end_spans(exporter, 10)
        assert await exporter.close() is None
        assert receiver.spans == []
    assert counts(exporter) == (0, 0, 0, 0)


PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 3
PARTIAL.partial_success.error_message = "too old"
PROTOBUF = b"content-type: application/x-protobuf\r\nconnection: close\r\n"


def answer(status: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, headers, len(body), body)


@pytest.mark.parametrize(
    ("said", "num_exported", "reason"),
    [
        (answer(b"500 Broken", b"connection: close\r\n"), 0, "HTTP 500"),
        (answer(b"404 Not Found", b"connection: close\r\n"), 0, "HTTP 404"),
        (answer(b"302 Found", b"location: /login\r\nconnection: close\r\n"), 0, "HTTP 302 leads to another address"),
        (answer(b"200 OK", PROTOBUF, PARTIAL.SerializeToString()), 7, "rejected: too old"),
    ],
)
async def test_a_collector_that_refuses_costs_spans_and_says_why(
    said: bytes, num_exported: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with canned(said) as url:
        exporter = only_traces(url)
        end_spans(exporter, 10)
        lost = await exporter.close()
    num_failed = 10 - num_exported
    assert counts(exporter) == (10, num_exported, num_failed, 0)
    assert lost == f"{num_failed} of 10 spans were not delivered to {url}/v1/traces ({reason})"
    (line,) = caplog.records
    assert line.name == "limelight.cli.span_delivery"
    assert reason in line.getMessage()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-collector\r\n", r"\(the answer is no HTTP \(BadStatusLine\)\)"),
        (b"", r"\(the connection was closed without an answer\)"),
        (None, r"\((connection reset by peer|broken pipe|the connection was closed without an answer)\)"),
    ],
)
async def test_no_answer_at_all_is_told_in_words(said: bytes | None, reason: str) -> None:
    with canned(said) as url:
        exporter = only_traces(url)
        end_spans(exporter, 10)
        lost = await exporter.close()
    assert lost is not None
    assert lost.startswith("10 of 10 spans were not delivered")
    assert re.search(f"{reason}$", lost)


async def test_a_collector_that_is_not_there_costs_spans_alone(caplog: pytest.LogCaptureFixture) -> None:
    exporter = only_traces(closed_port())
    end_spans(exporter, 10)
    lost = await exporter.close()
    assert lost is not None
    assert "10 of 10 spans were not delivered" in lost
    assert "(connection refused)" in lost
    assert not [record for record in caplog.records if record.name.startswith(("opentelemetry", "urllib3"))]


async def test_more_spans_than_may_wait_are_dropped_and_counted() -> None:
    with otlp_receiver(delay_seconds=FOREVER) as receiver:
        exporter = only_traces(receiver.url, OTEL_BSP_MAX_QUEUE_SIZE="16", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8")
        end_spans(exporter, 100)
        with anyio.fail_after(20):
            lost = await exporter.close()
        num_ended, num_exported, num_failed, num_dropped = counts(exporter)
    assert (num_ended, num_exported, num_failed) == (100, 0, 0)
    assert 100 - 16 - 8 <= num_dropped <= 100 - 16
    assert lost is not None
    assert lost.startswith("100 of 100")
    registry = CollectorRegistry()
    exporter.register(registry)
    assert f'limelight_trace_spans_total{{outcome="dropped"}} {num_dropped}.0' in generate_latest(registry).decode()


async def test_tokens_come_while_a_collector_keeps_its_answer_back() -> None:
    """Whoever waited for the collector would wait 30 seconds."""
    with otlp_receiver(delay_seconds=FOREVER) as receiver:
        exporter = Exporting(settings_of(receiver.url, OTEL_BSP_MAX_QUEUE_SIZE="64"))
        loader = scripted_model(babble)
        gaps = []
        async with observed_engine(EngineConfig(trace_step_interval=1), loader, ignore, exporter) as engine:
            for _ in range(5):
                last = anyio.current_time()
                async with engine.stream("hi", SamplingParams(max_tokens=60)) as stream:
                    async for _ in stream:
                        gaps.append(anyio.current_time() - last)
                        last = anyio.current_time()
        with anyio.fail_after(20):
            lost = await exporter.close()
    assert len(gaps) >= 100
    assert max(gaps) < FOREVER / 3
    assert lost is not None
    assert "spans were not delivered" in lost


def ignore(stage: str, fraction: float | None) -> None:
    """A report that nobody reads."""


@pytest.mark.parametrize("how", ["before", "signal"])
async def test_another_signal_ends_the_wait_for_the_last_spans(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "FLUSH_SECONDS", 1000.0)
    with otlp_receiver(delay_seconds=FOREVER) as receiver:
        exporter = only_traces(receiver.url)
        end_spans(exporter, 1)
        async with anyio.create_task_group() as group:
            if how == "before":
                exporter.hurry()
            else:
                group.start_soon(signal_soon)
            with anyio.fail_after(20):
                lost = await exporter.close()
    assert lost is not None
    assert lost.startswith("1 of 1 spans were not delivered")


async def signal_soon() -> None:
    while signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):  # until it is handled, it would end the tests
        await anyio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


async def test_metrics_that_get_nowhere_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with otlp_receiver(status=404) as receiver:
        exporter = Exporting(settings_of(receiver.url, OTEL_TRACES_EXPORTER="none"))
        assert exporter.meter_provider is not None
        exporter.meter_provider.get_meter("test").create_counter("count").add(1)
        assert await exporter.close() is None
        assert len(receiver.metrics) == 1
    (line,) = caplog.records
    assert line.getMessage().startswith(f"metrics cannot be delivered to {receiver.url}/v1/metrics: HTTP 404")


def test_reasons_are_short_and_name_the_port_of_grpc() -> None:
    assert reason_of(requests.ReadTimeout("...")) == "no answer in time"
    assert len(reason_of(ValueError("x" * 10_000))) <= 300
    session = NotedSession()
    with pytest.raises(requests.ConnectionError):
        session.post("http://127.0.0.1:4317/v1/traces", timeout=5)
    assert session.reason is not None
    assert "4318" in session.reason
