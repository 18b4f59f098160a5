"""What observing costs, short: all servers take turns, spans arrive, and what observes nothing observes nothing."""

import io
import json
import math
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from benchmarks import observed_server
from benchmarks.otlp_receiver import CountingReceiver
from benchmarks.tracing_cost import Ratio, Turn, main, ratios
from limelight.generation import SamplingParams
from limelight.telemetry.timeline import RequestTimeline
from limelight.testing import scripted_engine

ARMS = ["bare", "bare again", "off", "on", "dead"]


@pytest.fixture
def receiver() -> Iterator[CountingReceiver]:
    with CountingReceiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_every_figure_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "cost.json"
    main(["--streams", "4", "--output-len", "8", "--rounds", "2", "--json", str(saved)])
    result = json.loads(saved.read_text())
    assert list(result["turns"]) == ARMS
    for turns in result["turns"].values():
        assert len(turns) == 2
        assert all(0 < turn["loop_us"] <= turn["cpu_us"] for turn in turns)
        assert all(turn["tokens_per_second"] > 0 and turn["longest_gap_ms"] >= 0 for turn in turns)
    assert list(result["ratios"]) == ARMS[1:]
    assert result["exported_spans"]["text_completion"] == 4 * 3
    shown = capsys.readouterr().out
    assert all(f"\n{name}" in shown for name in ARMS)
    assert "off costs" in shown
    assert "12 text_completion" in shown


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    ratio = Ratio.of([1.1, 2.2, 30.0], [1.0, 2.0, 3.0])
    assert ratio.value == pytest.approx(1.1)
    assert ratio.error == pytest.approx(0.0, abs=1e-9)
    assert Ratio.of([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]).error == pytest.approx(2 * 1.4826 * 1.2533 / math.sqrt(3))
    turns = [Turn(tokens_per_second=50.0, cpu_us=30.0, loop_us=20.0, longest_gap_ms=1.0)]
    baseline = [Turn(tokens_per_second=100.0, cpu_us=10.0, loop_us=10.0, longest_gap_ms=1.0)]
    assert {name: ratio.value for name, ratio in ratios(turns, baseline).items()} == {
        "tokens_per_second": 0.5,
        "cpu_us": 3.0,
        "loop_us": 2.0,
    }


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_receiver_counts_spans_by_name(receiver: CountingReceiver, compression: Compression) -> None:
    address = f"http://127.0.0.1:{receiver.server_port}"
    provider = TracerProvider()
    exporter = OTLPSpanExporter(f"{address}/v1/traces", compression=compression)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for name in ("chat a", "chat b", "queue"):
        provider.get_tracer("test").start_span(name).end()
    provider.shutdown()
    with urllib.request.urlopen(f"{address}/counts") as response:
        assert json.load(response) == {"chat": 2, "queue": 1}


async def _timeline() -> tuple[RequestTimeline, int]:
    """Of one request, and how many requests its engine remembers."""
    async with scripted_engine(step_seconds=0.001) as engine:
        async with engine.stream("abc", SamplingParams(max_tokens=8)) as stream:
            await stream.result()
        return stream.timeline, len(engine.telemetry.recent)


@pytest.mark.anyio
async def test_what_observes_nothing_observes_nothing() -> None:
    observed_server.observe_nothing()
    try:
        bare, remembered = await _timeline()
    finally:
        mock.patch.stopall()
    assert remembered == 0
    assert bare.ended_at is None
    assert bare.choices[0].num_tokens == bare.choices[0].step_seconds == 0
    observed, remembered = await _timeline()
    assert remembered == 1
    assert observed.choices[0].num_tokens == 8
    assert observed.choices[0].step_seconds > 0


def test_a_server_tells_its_processor_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    signals = []
    monkeypatch.setattr("benchmarks.observed_server.os.kill", lambda *told: signals.append(told))
    observed_server.tell(io.StringIO("\n\n"), threading.get_ident())
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert 0 < first["loop_seconds"] <= second["loop_seconds"] <= second["process_seconds"]
    assert len(signals) == 1
