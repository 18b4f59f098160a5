"""Traces and metrics that leave the process: what asks for them, and collectors of every kind at the other end."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from limelight.cli import main
from limelight.cli.telemetry import ExportSettings, export_settings, export_warnings, shown_url
from limelight.errors import ConfigError
from tests.cli.collectors import FOREVER, closed_port
from tests.telemetry.otlp_receiver import OtlpReceiver, attributes_of, otlp_receiver
from tests.test_cli import QUICK, SLOW, Process, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


# ---- what asks for an export


def settings_of(endpoint: str | None = None, **variables: str) -> ExportSettings:
    settings = export_settings(endpoint, variables)
    assert settings is not None
    return settings


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_SDK_DISABLED": "True"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_METRICS_EXPORTER": "prometheus"},
        {"EXPORTER_OTLP_ENDPOINT": "http://a"},
    ],
)
def test_nothing_is_exported_that_nobody_asks_for(variables: Mapping[str, str]) -> None:
    assert export_settings(None, variables) is None


@pytest.mark.parametrize(
    ("endpoint", "variables", "traces", "metrics"),
    [
        ("http://a:4318", {}, "http://a:4318/v1/traces", "http://a:4318/v1/metrics"),
        ("http://a:4318/", {}, "http://a:4318/v1/traces", "http://a:4318/v1/metrics"),
        ("https://a/otlp", {}, "https://a/otlp/v1/traces", "https://a/otlp/v1/metrics"),
        ("http://a/v1/traces", {}, "http://a/v1/traces", "http://a/v1/metrics"),
        ("http://[::1]:1", {}, "http://[::1]:1/v1/traces", "http://[::1]:1/v1/metrics"),
        (None, {"ENDPOINT": "http://a"}, "http://a/v1/traces", "http://a/v1/metrics"),
        (None, {"TRACES_ENDPOINT": "http://a/here"}, "http://a/here", None),
        (None, {"METRICS_ENDPOINT": "http://a/here"}, None, "http://a/here"),
        (None, {"ENDPOINT": "http://a", "TRACES_ENDPOINT": "http://b/x"}, "http://b/x", "http://a/v1/metrics"),
        ("http://c", {"ENDPOINT": "http://a", "TRACES_ENDPOINT": "b"}, "http://c/v1/traces", "http://c/v1/metrics"),
    ],
)
def test_the_option_wins_over_a_signals_own_variable_and_that_over_the_general_one(
    endpoint: str | None, variables: Mapping[str, str], traces: str | None, metrics: str | None
) -> None:
    named = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    settings = settings_of(endpoint, **named)
    assert (settings.traces_url, settings.metrics_url) == (traces, metrics)
    assert settings.is_explicit == (endpoint is not None)


def test_exporters_can_be_chosen_by_name() -> None:
    settings = settings_of(OTEL_TRACES_EXPORTER="otlp, console", OTEL_METRICS_EXPORTER="console")
    assert (settings.traces_url, settings.traces_on_console) == ("http://localhost:4318/v1/traces", True)
    assert (settings.metrics_url, settings.metrics_on_console) == (None, True)
    only_traces = settings_of("http://a", OTEL_METRICS_EXPORTER="none")
    assert (only_traces.exports_traces, only_traces.exports_metrics) == (True, False)


def test_batches_are_small_unless_a_variable_says_otherwise() -> None:
    assert settings_of("http://a").batch_size == 64
    assert settings_of("http://a", OTEL_BSP_MAX_QUEUE_SIZE="10").batch_size == 10
    assert settings_of("http://a", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="512").batch_size == 512


WRONG = [
    ("localhost:4318", {}, "--otlp-endpoint is 'localhost:4318'"),
    ("grpc://a:4317", {}, "--otlp-endpoint"),
    ("http://", {}, "--otlp-endpoint"),
    ("http://a:port", {}, "--otlp-endpoint"),
    ("http://a:99999", {}, "--otlp-endpoint"),
    ("http://a:0", {}, "--otlp-endpoint"),
    ("http://[::1", {}, "--otlp-endpoint"),
    ("http://a b", {}, "--otlp-endpoint"),
    ("", {}, "--otlp-endpoint is ''"),
    (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'collector'"),
    (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "a:1"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is 'a:1'"),
    (
        "http://a",
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', and Limelight",
    ),
    ("http://a", {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "set it to that, or leave it out"),
    ("http://a", {"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'; use otlp, console or none"),
    ("http://a", {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "many"}, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 'many'"),
    ("http://a", {"OTEL_BSP_SCHEDULE_DELAY": "-5"}, "OTEL_BSP_SCHEDULE_DELAY is '-5'; use a whole number from 1"),
    ("http://a", {"OTEL_BSP_EXPORT_TIMEOUT": "soon"}, "OTEL_BSP_EXPORT_TIMEOUT is 'soon'"),
    ("http://a", {"OTEL_METRIC_EXPORT_INTERVAL": "0"}, "OTEL_METRIC_EXPORT_INTERVAL is '0'"),
    ("http://a", {"OTEL_METRIC_EXPORT_TIMEOUT": "1e3"}, "OTEL_METRIC_EXPORT_TIMEOUT is '1e3'"),
    ("http://a", {"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE"),
    ("http://a", {"OTEL_BSP_MAX_QUEUE_SIZE": "1".zfill(12) + "0" * 9}, "OTEL_BSP_MAX_QUEUE_SIZE"),
    ("http://a", {"OTEL_BSP_MAX_QUEUE_SIZE": "9" * 5000}, "OTEL_BSP_MAX_QUEUE_SIZE"),
    ("http://a", {"OTEL_BSP_MAX_QUEUE_SIZE": "9", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10"}, "only 9 spans may wait"),
]


@pytest.mark.parametrize(("endpoint", "variables", "says"), WRONG)
def test_what_is_wrong_is_told_before_the_model_is_loaded(
    endpoint: str | None,
    variables: Mapping[str, str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("the model is loaded")

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    option = [] if endpoint is None else ["--otlp-endpoint", endpoint]
    assert main(["serve", "--port", "0", *option], loader=load) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("limelight: ")
    assert errors.count("\n") == 1
    assert says in errors


def test_a_protocol_that_overrides_a_wrong_one_counts() -> None:
    fine = {f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL": "http/protobuf" for signal in ("TRACES", "METRICS")}
    assert settings_of("http://a", OTEL_EXPORTER_OTLP_PROTOCOL="grpc", **fine).traces_url


ADDRESSES = st.text(max_size=40).flatmap(lambda text: st.sampled_from([text, f"http://{text}", f"http://host/{text}"]))


@given(ADDRESSES)
def test_an_address_that_is_taken_is_one_that_a_request_can_go_to(text: str) -> None:
    try:
        settings = settings_of(text)
    except ConfigError:
        return
    assert settings.traces_url is not None
    requests.Request("POST", settings.traces_url).prepare()


def test_addresses_are_shown_without_what_may_be_secret() -> None:
    assert shown_url("https://me:secret@host:1/v1/traces?key=secret#secret") == "https://host:1/v1/traces"


def test_options_without_effect_and_content_that_leaves_are_told() -> None:
    def told(endpoint: str | None, *, content: bool, **variables: str) -> list[str]:
        settings = export_settings(endpoint, variables)
        return list(export_warnings(endpoint, trace_content=content, settings=settings))

    assert told("http://a", content=False) == []
    assert "no effect" in told(None, content=True)[0]
    assert "prompts and answers to http://a/v1/traces" in told("http://me:pw@a", content=True)[0]
    assert "prompts and answers to the console" in told(None, content=True, OTEL_TRACES_EXPORTER="console")[0]
    assert ["no effect" in line for line in told("http://a", content=True, OTEL_SDK_DISABLED="true")] == [True, True]


# ---- the program


CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


def chat(server: Process, **headers: str) -> None:
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(CHAT).encode(), {"content-type": "application/json", **headers}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200


def span_of(receiver: OtlpReceiver, name: str) -> Span:
    (found,) = [span for span in receiver.spans if span.name == name]
    return found


def test_serve_sends_the_whole_tree_of_a_chat_before_it_ends() -> None:
    with otlp_receiver() as receiver:
        with serving(QUICK, "--otlp-endpoint", receiver.url, env={"OTEL_SERVICE_NAME": "lamp"}) as server:
            chat(server, traceparent=PARENT)
            server.signal(signal.SIGTERM)
            code, errors = server.end()
        assert code == 0
        assert "not delivered" not in errors
        served, asked = span_of(receiver, "POST /v1/chat/completions"), span_of(receiver, "chat scripted")
        assert (served.kind, served.parent_span_id.hex()) == (Span.SPAN_KIND_SERVER, PARENT[36:52])
        assert asked.parent_span_id == served.span_id
        for name in ("tokenize", "queue", "prefill", "decode"):
            assert span_of(receiver, name).parent_span_id == asked.span_id
            assert span_of(receiver, name).trace_id.hex() == PARENT[3:35]
        resource = attributes_of(receiver.traces[0].resource_spans[0].resource.attributes)
        assert resource["service.name"] == "lamp"
        names = {
            metric.name for sent in receiver.metrics for metric in sent.resource_metrics[0].scope_metrics[0].metrics
        }
        assert "gen_ai.server.request.duration" in names


def test_serve_serves_and_ends_with_a_dead_collector_and_says_what_was_lost() -> None:
    url = closed_port()
    with serving(QUICK, env={"OTEL_EXPORTER_OTLP_ENDPOINT": url}) as server:
        chat(server)
        _, metrics = server.get("/metrics")
        assert b'limelight_trace_spans_total{outcome="failed"}' in metrics
        server.signal(signal.SIGTERM)
        code, errors = server.end()
    assert code == 0
    assert f"spans were not delivered to {url}/v1/traces (connection refused)" in errors
    assert "Traceback" not in errors


def test_a_second_signal_ends_serve_with_a_dead_collector() -> None:
    with (
        otlp_receiver(delay_seconds=FOREVER) as receiver,
        serving(SLOW, "--otlp-endpoint", receiver.url) as server,
        server.stream(max_tokens=1500) as response,
    ):
        response.read(100)
        server.signal(signal.SIGTERM)
        assert server.process.stderr is not None
        assert any("1 running" in line for line in server.process.stderr)
        server.signal(signal.SIGTERM)
        code, errors = server.end()
    assert code == 0
    assert "at once" in errors
    assert "Traceback" not in errors


PROGRAM = """
import atexit, sys, threading
from limelight.cli import main
from limelight.testing import echo, scripted_model

def tell():
    sdk = [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "requests"))]
    threads = [thread.name for thread in threading.enumerate() if "Otel" in thread.name]
    print("LOADED", sdk, threads, file=sys.stderr)

atexit.register(tell)
raise SystemExit(main(sys.argv[1:], loader=scripted_model(echo)))
"""
WITH_PROVIDER = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter

trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
"""


def batch(tmp_path: Path, program: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and standard error of a batch of one chat."""
    lines = tmp_path / "batch.jsonl"
    lines.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}))
    done = subprocess.run(
        [sys.executable, "-c", program, "run-batch", str(lines), *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.decode()


def test_a_process_that_exports_nothing_loads_no_sdk(tmp_path: Path) -> None:
    code, errors = batch(tmp_path, PROGRAM, OTEL_SERVICE_NAME="x")
    assert code == 0
    assert "LOADED [] []" in errors


def test_a_batch_is_traced_too(tmp_path: Path) -> None:
    with otlp_receiver() as receiver:
        code, errors = batch(tmp_path, PROGRAM, "--otlp-endpoint", receiver.url)
        assert code == 0
        assert "not delivered" not in errors
        assert span_of(receiver, "chat scripted")


def test_a_provider_that_is_there_already_is_used_as_it_is(tmp_path: Path) -> None:
    with otlp_receiver() as receiver:
        code, errors = batch(tmp_path, WITH_PROVIDER + PROGRAM, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
        assert code == 0
        assert '"name": "chat scripted"' in errors
        assert receiver.spans == []
