"""One row of what is exported: its name, its labels, what it means, and how to read it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.samples import Exemplar as PrometheusExemplar
from prometheus_client.utils import floatToGoString

from limelight.telemetry.instruments import Exemplar, Histogram, Labels
from limelight.telemetry.prometheus.snapshot import Snapshot

Kind = Literal["counter", "gauge", "histogram", "info"]
Bucket = tuple[str, float] | tuple[str, float, PrometheusExemplar]
Reading = Iterable[tuple[Labels, float | Histogram]]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric.

    Attributes:
        name: without `_total` of counters and `_info` of infos.
        help: a sentence; units are in the name.
        labels: names of the labels.
        read: label values and what they have, at a scrape; nothing for what is not known now. An info's value is 1.
    """

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Snapshot], Reading]

    @property
    def exposed_name(self) -> str:
        """As queries name it: that of the samples, without the suffixes of a histogram."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")

    def family(self, snapshot: Snapshot | None) -> Metric:
        """The metric with its samples; without any for None."""
        reading = () if snapshot is None else self.read(snapshot)
        match self.kind:
            case "counter":
                counter = CounterMetricFamily(self.name, self.help, labels=self.labels)
                for labels, value in reading:
                    assert not isinstance(value, Histogram), "a number is read"
                    counter.add_metric(labels, value)
                return counter
            case "gauge":
                gauge = GaugeMetricFamily(self.name, self.help, labels=self.labels)
                for labels, value in reading:
                    assert not isinstance(value, Histogram), "a number is read"
                    gauge.add_metric(labels, value)
                return gauge
            case "info":
                info = InfoMetricFamily(self.name, self.help)
                for labels, _ in reading:
                    info.add_metric((), dict(zip(self.labels, labels, strict=True)))
                return info
            case "histogram":
                histogram = HistogramMetricFamily(self.name, self.help, labels=self.labels)
                for labels, value in reading:
                    assert isinstance(value, Histogram), "a histogram is read"
                    histogram.add_metric(labels, _cumulative(value), sum_value=value.total)
                return histogram


def _cumulative(histogram: Histogram) -> list[Bucket]:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return [
        (bound, count) if exemplar is None else (bound, count, _exemplar(exemplar))
        for bound, count, exemplar in zip(bounds, accumulate(histogram.counts), histogram.exemplars, strict=True)
    ]


def _exemplar(exemplar: Exemplar) -> PrometheusExemplar:
    return PrometheusExemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.unix_seconds)
