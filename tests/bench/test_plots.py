"""Pictures parse, show every request, and hold no number that no picture can."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from limelight.bench.plots.drawing import BLUE, RED, Drawing, check_plot, write_plot
from limelight.bench.plots.panel import percentile, shown, ticks
from limelight.bench.plots.runs import MOST_ROWS, plot_batches, plot_passes, plot_requests, plot_starts
from limelight.bench.request_result import RequestResult
from limelight.bench.startup import Start
from limelight.errors import ConfigError


def parsed(drawing: Drawing) -> ET.Element:
    svg = drawing.svg()
    assert not re.search(r"\b(nan|inf|None)\b", svg)
    root = ET.fromstring(svg)
    for element in root.iter():
        for side in ("x", "x1", "x2"):
            assert -1 <= float(element.get(side, "0")) <= drawing.width
        for side in ("y", "y1", "y2"):
            assert -1 <= float(element.get(side, "0")) <= drawing.height
    return root


def texts(root: ET.Element) -> set[str]:
    return {element.text or "" for element in root.iter() if element.tag.endswith("text")}


def request(sent: float, gaps: list[float], error: str | None = None) -> RequestResult:
    result = RequestResult(sent_seconds=sent, num_output_tokens=len(gaps) + 1, error=error)
    result.arrived(0.25)
    for gap in gaps:
        result.arrived(result.latency_seconds + gap)
    return result


def test_each_request_has_its_bar_and_failures_are_red() -> None:
    results = [request(0.1 * number, [0.1] * 5) for number in range(6)] + [request(0.3, [], error="boom")]
    root = parsed(plot_requests(results, 1.5, "A & B", "<six>"))
    bars = [element for element in root.iter() if element.get("fill") == RED and element.get("rx") == "0"]
    assert len(bars) == 1
    assert {"A & B", "<six>", "Requests", "Output tokens per second", "failed"} <= texts(root)


@pytest.mark.parametrize(
    "results",
    [
        [request(0.0, [], error="boom")],
        [request(0.0, [])],
        [request(0.0, [0.0, 0.0])],
        [request(number * 1e-3, [1e-4] * 3) for number in range(3 * MOST_ROWS)],
    ],
    ids=["all failed", "one token", "all at once", "many"],
)
def test_any_run_can_be_drawn(results: list[RequestResult]) -> None:
    parsed(plot_requests(results, 1.0, "t", "s"))


def test_batches_and_starts_can_be_drawn() -> None:
    root = parsed(plot_batches([1.0, 2.0], "t", "s"))
    assert len([element for element in root.iter() if element.get("fill") == BLUE]) == 2
    starts = [Start(1.0, 1.5, {"import": 1.0, "load": 0.5}), Start(2.0, 2.5, {"import": 2.0, "load": 0.0, "more": 0.5})]
    assert {"import: 1.50 s", "load: 0.25 s", "more: 0.25 s", "2.50 s"} <= texts(parsed(plot_starts(starts, "t", "s")))


def test_passes_can_be_drawn_and_small_kinds_are_others() -> None:
    kinds = {"linear": {"share": 0.9}, "attend": {"share": 0.097}, "embed": {"share": 0.003}}
    one = {"name": "decode, 1 row", "ms": 12.5, "roofline_share": 1.2, "kinds": kinds}
    shown_texts = texts(parsed(plot_passes([one], "t", "s")))
    assert {"decode, 1 row: 12.5 ms", "linear", "attend", "others"} <= shown_texts
    assert "embed" not in shown_texts


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 48.3), (0.5, 12.5), (0.0, 1e-4), (0.0, 123456.0)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    values = ticks(low, high)
    assert 2 <= len(values) <= 8
    assert all(low - 1e-9 <= value <= high * (1 + 1e-9) for value in values)


def test_numbers_are_short() -> None:
    assert [shown(value) for value in (0.0, 0.05, 1.0, 12.34, 598.2, 1184.0)] == [
        "0",
        "0.05",
        "1",
        "12.3",
        "598",
        "1,184",
    ]
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 3.0
    assert percentile([1.0], 99) == 1.0


def test_a_png_is_drawn_or_the_missing_package_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    drawing = plot_batches([1.0], "t", "s")
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"pip install 'limelight\[plot\]'"):
            check_plot(path)
    else:
        write_plot(drawing, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.svg or \.png"):
        check_plot(tmp_path / "run.pdf")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_plot(tmp_path / "nowhere" / "run.svg")
    write_plot(plot_batches([1.0], "t", "s"), tmp_path / "run.svg")
    assert ET.parse(tmp_path / "run.svg").getroot().tag.endswith("svg")
