"""Counters and histograms as plain numbers: an observation is an addition, and all formatting happens at the scrape."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

MAX_SERIES = 200
"""Label sets of one family; further ones are counted together, so that no client can fill the memory."""
OTHER = "other"

Labels = tuple[str, ...]
"""Label values, in the order of the labels' names."""


class Exemplar(NamedTuple):
    """An observation that came with a trace.

    Attributes:
        trace_id: hexadecimal.
    """

    value: float
    trace_id: str
    unix_seconds: float


class Histogram:
    """Observations in buckets; not cumulative, as Prometheus wants them only at the scrape.

    Args:
        bounds: upper bounds of the buckets, rising, without infinity.

    Attributes:
        counts: per bucket, one more than there are bounds.
        total: sum of all observations.
        exemplars: per bucket, the last observation that came with a trace.
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts)

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def observe_traced(self, value: float, trace_id: str | None, unix_seconds: float) -> None:
        """Count `value` and, if there is a trace, keep it as an example."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id is not None:
            self.exemplars[bucket] = Exemplar(value, trace_id, unix_seconds)


class Counter:
    """A number for each set of label values.

    Args:
        max_series: sets of label values; what comes under further ones is counted as `OTHER`.

    Attributes:
        values: by label values.
    """

    __slots__ = ("_max_series", "num_labels", "values")

    def __init__(self, num_labels: int = 0, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self.num_labels = num_labels
        self.values: dict[Labels, float] = {} if num_labels else {(): 0}

    def add(self, amount: float = 1, *labels: str) -> None:
        """Count under these label values."""
        if labels not in self.values and len(self.values) >= self._max_series:
            labels = (OTHER,) * self.num_labels
        self.values[labels] = self.values.get(labels, 0) + amount


class HistogramFamily:
    """A histogram for each set of label values, bounded as the series of a `Counter` are.

    Args:
        bounds: as of a `Histogram`.

    Attributes:
        histograms: by label values.
    """

    __slots__ = ("bounds", "histograms", "num_labels")

    def __init__(self, bounds: Sequence[float], num_labels: int) -> None:
        self.bounds = tuple(bounds)
        self.num_labels = num_labels
        self.histograms: dict[Labels, Histogram] = {}

    def of(self, *labels: str) -> Histogram:
        """The one of these label values."""
        if labels not in self.histograms and len(self.histograms) >= MAX_SERIES:
            labels = (OTHER,) * self.num_labels
        histogram = self.histograms.get(labels)
        if histogram is None:
            histogram = self.histograms[labels] = Histogram(self.bounds)
        return histogram

    def merged(self, wanted: Callable[[Labels], bool] = lambda _labels: True) -> Histogram:
        """All observations under label values that are wanted, without exemplars."""
        merged = Histogram(self.bounds)
        for labels, histogram in list(self.histograms.items()):
            if wanted(labels):
                merged.counts = [mine + its for mine, its in zip(merged.counts, histogram.counts, strict=True)]
                merged.total += histogram.total
        return merged
