"""Counters and histograms as plain numbers: an observation is an addition, and all formatting happens at the scrape."""

from bisect import bisect_left
from collections.abc import Sequence

MAX_SERIES = 200
"""Label sets of one counter; further ones are counted together, so that no client can fill the memory."""
OTHER = "other"


class Histogram:
    """Observations in buckets; not cumulative, as Prometheus wants them only at the scrape.

    Args:
        bounds: upper bounds of the buckets, rising, without infinity.

    Attributes:
        counts: per bucket, one more than there are bounds.
        total: sum of all observations.
        exemplars: per bucket, the last observation that came with a trace: (value, trace id in hex, Unix seconds).
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: list[tuple[float, str, float] | None] = [None] * len(self.counts)

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def observe_traced(self, value: float, trace_id: str, unix_seconds: float) -> None:
        """Count `value`, and keep it as an example."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        self.exemplars[bucket] = (value, trace_id, unix_seconds)


class Counter:
    """A number for each set of label values.

    Attributes:
        values: by label values, in the order of the labels' names.
    """

    __slots__ = ("num_labels", "values")

    def __init__(self, num_labels: int = 0) -> None:
        self.num_labels = num_labels
        self.values: dict[tuple[str, ...], float] = {} if num_labels else {(): 0}

    def add(self, amount: float = 1, *labels: str) -> None:
        """Count under these label values."""
        if labels not in self.values and len(self.values) >= MAX_SERIES:
            labels = (OTHER,) * self.num_labels
        self.values[labels] = self.values.get(labels, 0) + amount
