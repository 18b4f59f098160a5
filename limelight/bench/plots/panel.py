"""A panel of a picture: two axes with round numbers, and what is drawn between them."""

import math
from collections.abc import Sequence

from limelight.bench.plots.drawing import FAINT, GRID, INK, Drawing

NUM_TICKS = 6
MARGIN = 40.0
AXIS_SPACE = 64.0
"""Left of a panel, for the numbers of its axis."""


class Panel:
    """The rectangle from (`x`, `y`), with its title above.

    Args:
        across, up: the ranges (from, to) of the axes; `up` None: an axis without numbers.
        across_label: what the horizontal axis counts.
    """

    def __init__(
        self,
        drawing: Drawing,
        title: str,
        box: tuple[float, float, float, float],
        across: tuple[float, float],
        up: tuple[float, float] | None,
        across_label: str,
    ) -> None:
        self.drawing = drawing
        self.left, self.top, self.width, self.height = box
        self._across = across
        self._up = up or (0.0, 1.0)
        drawing.text(self.left, self.top - 12, title, size=13, bold=True)
        for value in ticks(*across):
            x = self.x(value)
            drawing.line(x, self.top, x, self.bottom, GRID)
            drawing.text(x, self.bottom + 16, shown(value), size=11, color=FAINT, anchor="middle")
        for value in ticks(*up) if up else ():
            y = self.y(value)
            drawing.line(self.left, y, self.left + self.width, y, GRID)
            drawing.text(self.left - 8, y + 4, shown(value), size=11, color=FAINT, anchor="end")
        drawing.line(self.left, self.bottom, self.left + self.width, self.bottom, FAINT)
        drawing.text(self.left + self.width, self.bottom + 32, across_label, size=11, color=FAINT, anchor="end")

    @property
    def bottom(self) -> float:
        """The base line."""
        return self.top + self.height

    def x(self, value: float) -> float:
        """Pixels of a value on the horizontal axis; beyond the range: of its end."""
        low, high = self._across
        return self.left + self.width * min(max((value - low) / (high - low), 0.0), 1.0)

    def y(self, value: float) -> float:
        """Pixels of a value on the vertical axis; beyond the range: of its end."""
        low, high = self._up
        return self.bottom - self.height * min(max((value - low) / (high - low), 0.0), 1.0)

    def rule(self, value: float, label: str, *, down: bool = False) -> None:
        """A dashed line at a value of the vertical axis (with `down`: of the horizontal one), and what it says."""
        if down:
            x = self.x(value)
            self.drawing.line(x, self.top, x, self.bottom, INK, dash="4 3")
            late = x > self.left + self.width * 0.7
            anchor, shift = ("end", -5) if late else ("start", 5)
            self.drawing.text(x + shift, self.top + 11, label, size=11, anchor=anchor)
        else:
            y = self.y(value)
            self.drawing.line(self.left, y, self.left + self.width, y, INK, dash="4 3")
            self.drawing.text(self.left + self.width - 4, y - 5, label, size=11, anchor="end")


def histogram(
    drawing: Drawing, title: str, box: tuple[float, float, float, float], milliseconds: Sequence[float], color: str
) -> None:
    """How often values occur, up to their 99.5th percentile; the rest stands in the last bar. Marks median and p99."""
    ordered = sorted(milliseconds)
    high = max(percentile(ordered, 99.5), 1e-3) * 1.02
    num_bins = max(min(int(math.sqrt(len(ordered)) * 2), 48), 8)
    counts = [0] * num_bins
    for value in ordered:
        counts[min(int(value / high * num_bins), num_bins - 1)] += 1
    panel = Panel(drawing, title, box, (0.0, high), (0.0, max(counts) * 1.2), "ms")
    bin_width = panel.width / num_bins
    for number, count in enumerate(counts):
        if count:
            top = panel.y(count)
            drawing.rect(panel.left + number * bin_width, top, bin_width - 0.8, panel.bottom - top, color)
    median, p99 = percentile(ordered, 50), percentile(ordered, 99)
    panel.rule(median, f"median {shown(median)}", down=True)
    if p99 > median * 1.4:
        panel.rule(p99, f"p99 {shown(p99)}", down=True)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the ordered values lie."""
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def legend(drawing: Drawing, right: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    """Names and their colours in one line that ends at `right`."""
    for name, color in reversed(entries):
        right -= len(name) * 6.2
        drawing.text(right, y, name, size=11, color=FAINT)
        right -= 16
        drawing.rect(right, y - 9, 10, 10, color, radius=2)
        right -= 14


def ticks(low: float, high: float) -> list[float]:
    """A few round numbers from `low` to `high`."""
    rough = (high - low) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def shown(value: float) -> str:
    """A number as short as it can be without loss that would show."""
    if value == 0:
        return "0"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"
