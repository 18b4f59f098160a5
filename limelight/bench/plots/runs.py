"""Pictures of what ran: requests over time, batches, starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from limelight.bench.plots.drawing import AMBER, BLUE, FAINT, INK, PALE, RED, SERIES, Drawing
from limelight.bench.plots.panel import AXIS_SPACE, MARGIN, Panel, histogram, legend, shown
from limelight.bench.request_result import RequestResult
from limelight.bench.startup import Start

WIDTH = 960.0
INNER = WIDTH - MARGIN - AXIS_SPACE
MOST_ROWS = 240
LARGEST_ROW = 14.0
ROWS_HEIGHT = 320.0
NUM_BINS = 80
SMALL_SHARE = 0.005
SMALL_HEIGHT = 130.0


def plot_requests(results: Sequence[RequestResult], duration: float, title: str, subtitle: str) -> Drawing:
    """Each request as a bar over time, the tokens per second, and how TTFT and the gaps between tokens spread."""
    drawing = _titled(title, subtitle)
    top = _request_bars(drawing, results, duration) + 84
    done = [result for result in results if result.error is None and result.latency_seconds]
    if done:
        top = _throughput(drawing, done, duration, top) + 84
        half = (INNER - AXIS_SPACE) / 2
        box = (AXIS_SPACE, top, half, SMALL_HEIGHT)
        histogram(drawing, "Time to first token (requests)", box, [r.ttft_seconds * 1000 for r in done], AMBER)
        gaps = [gap * 1000 for result in done for gap in result.gaps_seconds]
        if gaps:
            box = (AXIS_SPACE + half + AXIS_SPACE, top, half, SMALL_HEIGHT)
            histogram(drawing, "Between two tokens (events)", box, gaps, BLUE)
        top += SMALL_HEIGHT
    drawing.height = top + 56
    return drawing


def plot_batches(latencies: Sequence[float], title: str, subtitle: str) -> Drawing:
    """The seconds of each of several equal batches."""
    drawing = _titled(title, subtitle)
    box = (AXIS_SPACE, 110.0, INNER, 260.0)
    count = len(latencies)
    panel = Panel(drawing, "Seconds of each batch", box, (0.5, count + 0.5), (0.0, max(latencies) * 1.15), "batch")
    step = panel.width / count
    for number, seconds in enumerate(latencies):
        y = panel.y(seconds)
        drawing.rect(panel.left + step * (number + 0.15), y, step * 0.7, panel.bottom - y, BLUE, radius=2)
    mean = sum(latencies) / count
    panel.rule(mean, f"mean {shown(mean)} s")
    drawing.height = panel.bottom + 56
    return drawing


def plot_starts(starts: Sequence[Start], title: str, subtitle: str) -> Drawing:
    """Each start as a bar of its parts."""
    drawing = _titled(title, subtitle)
    longest = max(start.first_token_seconds for start in starts)
    box = (AXIS_SPACE, 110.0, INNER, 40.0 * len(starts))
    panel = Panel(
        drawing, "From the start of the process to the first token", box, (0.0, longest * 1.06), None, "seconds"
    )
    colors = dict(zip(dict.fromkeys(part for s in starts for part in s.parts), SERIES * len(starts), strict=False))
    for number, start in enumerate(starts):
        y = panel.top + 40 * number + 8
        begin = 0.0
        for part, seconds in start.parts.items():
            drawing.rect(panel.x(begin), y, panel.x(begin + seconds) - panel.x(begin), 24, colors[part])
            begin += seconds
        drawing.text(panel.left - 8, y + 16, str(number + 1), size=11, color=FAINT, anchor="end")
        drawing.text(panel.x(begin) + 6, y + 16, f"{begin:.2f} s", size=11)
    y = panel.bottom + 60
    for part, color in colors.items():
        mean = sum(start.parts.get(part, 0.0) for start in starts) / len(starts)
        drawing.rect(panel.left, y - 9, 10, 10, color, radius=2)
        drawing.text(panel.left + 18, y, f"{part}: {mean:.2f} s", size=12)
        y += 20
    drawing.height = y + 16
    return drawing


def plot_passes(passes: Sequence[Mapping[str, Any]], title: str, subtitle: str) -> Drawing:
    """Each pass (`kernels.pass_figures`) as a bar of its kinds of operations, with a mark for its roofline."""
    drawing = _titled(title, subtitle)
    box = (AXIS_SPACE, 110.0, INNER, 62.0 * len(passes))
    panel = Panel(drawing, "Share of each kind of operation", box, (0.0, 100.0), None, "percent of the pass")
    kinds = dict.fromkeys(
        kind for one in passes for kind, entry in one["kinds"].items() if entry["share"] >= SMALL_SHARE
    )
    colors = dict(zip(kinds, SERIES * (len(kinds) // len(SERIES) + 1), strict=False))
    for number, one in enumerate(passes):
        y = panel.top + 62 * number + 26
        drawing.text(panel.left, y - 7, f"{one['name']}: {shown(one['ms'])} ms", size=12)
        begin = 0.0
        for kind, entry in one["kinds"].items():
            end = begin + entry["share"] * 100
            drawing.rect(panel.x(begin), y, panel.x(end) - panel.x(begin), 24, colors.get(kind, PALE))
            begin = end
        x = panel.x(one["roofline_share"] * 100)
        drawing.line(x, y - 3, x, y + 27, INK, width=2)
    legend(drawing, AXIS_SPACE + INNER, panel.top - 12, [*colors.items(), ("others", PALE)])
    drawing.text(panel.left, panel.bottom + 34, "| the least time that memory and the int8 product allow", size=11)
    drawing.height = panel.bottom + 56
    return drawing


def _titled(title: str, subtitle: str) -> Drawing:
    drawing = Drawing(WIDTH)
    drawing.text(AXIS_SPACE, 36, title, size=18, bold=True)
    drawing.text(AXIS_SPACE, 58, subtitle, size=12, color=FAINT)
    return drawing


def _request_bars(drawing: Drawing, results: Sequence[RequestResult], duration: float) -> float:
    """Draws the bars and returns where they end."""
    every = -(-len(results) // MOST_ROWS)
    rows = sorted(results, key=lambda result: result.sent_seconds)[::every]
    row_height = min(LARGEST_ROW, ROWS_HEIGHT / max(len(rows), 1))
    named = "Requests" if every == 1 else f"Requests (one in {every})"
    box = (AXIS_SPACE, 110.0, INNER, row_height * len(rows) + 4)
    panel = Panel(drawing, named, box, (0.0, duration), None, "seconds since the start")
    entries = [("until the first token", AMBER), ("until the last token", BLUE)]
    if any(result.error is not None for result in results):
        entries.append(("failed", RED))
    legend(drawing, AXIS_SPACE + INNER, panel.top - 12, entries)
    bar_height = row_height * 0.78 if row_height > 3 else row_height
    for number, result in enumerate(rows):
        y = panel.top + 2 + number * row_height
        begin = panel.x(result.sent_seconds)
        if result.error is not None:
            drawing.rect(begin, y, 6, bar_height, RED)
            continue
        first = panel.x(result.sent_seconds + result.ttft_seconds)
        last = panel.x(result.sent_seconds + result.latency_seconds)
        drawing.rect(begin, y, first - begin, bar_height, AMBER)
        drawing.rect(first, y, last - first, bar_height, BLUE)
    return panel.bottom


def _throughput(drawing: Drawing, done: Sequence[RequestResult], duration: float, top: float) -> float:
    """Draws output tokens per second and returns where the panel ends."""
    counts = [0.0] * NUM_BINS
    for result in done:
        arrivals = result.arrivals_seconds
        tokens_each = result.num_output_tokens / len(arrivals)  # an event may bring several
        for seconds in arrivals:
            counts[min(int(seconds / duration * NUM_BINS), NUM_BINS - 1)] += tokens_each
    rates = [count / (duration / NUM_BINS) for count in counts]
    box = (AXIS_SPACE, top, INNER, SMALL_HEIGHT)
    panel = Panel(
        drawing, "Output tokens per second", box, (0.0, duration), (0.0, max(rates) * 1.15), "seconds since the start"
    )
    middles = [(number + 0.5) * duration / NUM_BINS for number in range(NUM_BINS)]
    drawing.area([(panel.x(x), panel.y(rate)) for x, rate in zip(middles, rates, strict=True)], panel.bottom, BLUE)
    mean = sum(counts) / duration
    panel.rule(mean, f"mean {shown(mean)}")
    return panel.bottom
