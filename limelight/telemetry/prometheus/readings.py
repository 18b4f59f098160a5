"""From counters, families and state to label values and numbers."""

from collections.abc import Callable, Iterator

from limelight.telemetry.instruments import Counter, Histogram, HistogramFamily, Labels
from limelight.telemetry.prometheus.snapshot import Snapshot
from limelight.telemetry.statistics import EngineStatistics
from limelight.telemetry.usage_totals import Usage

Numbers = Iterator[tuple[Labels, float]]
Histograms = Iterator[tuple[Labels, Histogram]]


def number(value: float) -> Numbers:
    """One, without labels."""
    yield (), value


def histogram(value: Histogram) -> Histograms:
    """One, without labels."""
    yield (), value


def state(snapshot: Snapshot, read: Callable[[EngineStatistics], float]) -> Numbers:
    """A number of the running engine; nothing while it is not up."""
    if snapshot.statistics is not None:
        yield (), read(snapshot.statistics)


def totals(counter: Counter, *first: Labels) -> Numbers:
    """All numbers of a counter; 0 for those of `first` that it does not have yet, so that rates see their rise."""
    values = dict(counter.values)
    yield from ((labels, 0) for labels in first if labels not in values)
    yield from values.items()


def family(histograms: HistogramFamily, *first: Labels) -> Histograms:
    """All histograms of a family; empty ones for those of `first` that it does not have yet."""
    values = dict(histograms.histograms)
    yield from ((labels, Histogram(histograms.bounds)) for labels in first if labels not in values)
    yield from values.items()


def by_model(snapshot: Snapshot, histograms: HistogramFamily) -> Histograms:
    """All histograms of a family with the label `model`."""
    return family(histograms, (snapshot.model,))


def used(snapshot: Snapshot, read: Callable[[Usage], float]) -> Numbers:
    """A total by model and principal."""
    yield from ((names, read(usage)) for names, usage in snapshot.usage.items())
