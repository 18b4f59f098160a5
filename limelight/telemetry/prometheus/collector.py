"""What a `prometheus_client` registry asks for metrics."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from limelight.errors import ConfigError
from limelight.telemetry.prometheus.engine_rows import ENGINE_ROWS, HTTP_ROWS
from limelight.telemetry.prometheus.metric import MetricRow
from limelight.telemetry.prometheus.request_rows import PRINCIPAL_ROWS, REQUEST_ROWS
from limelight.telemetry.prometheus.share_rows import SHARE_ROWS
from limelight.telemetry.prometheus.snapshot import Snapshot
from limelight.telemetry.prometheus.vllm_rows import VLLM_ROWS

ROWS = (*REQUEST_ROWS, *PRINCIPAL_ROWS, *SHARE_ROWS, *ENGINE_ROWS, *HTTP_ROWS)
"""What every engine exports."""


class EngineCollector(Collector):
    """The metrics of one engine, read at each scrape; may be scraped from any thread.

    Args:
        read: takes the snapshot.
        vllm_metrics: vLLM's names, too.
    """

    def __init__(self, read: Callable[[], Snapshot], *, vllm_metrics: bool) -> None:
        self._read = read
        self._rows: tuple[MetricRow, ...] = (*ROWS, *VLLM_ROWS) if vllm_metrics else ROWS

    def describe(self) -> Iterable[Metric]:
        """All metrics without samples, by which a registry finds names that it has already."""
        return [row.family(None) for row in self._rows]

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now, each read when it is asked for."""
        snapshot = self._read()
        yield from (row.family(snapshot) for row in self._rows)


def register(registry: CollectorRegistry, collector: EngineCollector) -> None:
    """Let `registry` scrape `collector`.

    Raises:
        ConfigError: another engine is there, or something else under our names.
    """
    try:
        registry.register(collector)
    except ValueError as error:
        raise ConfigError(
            "metrics_registry has metrics of these names already, of another engine as it seems; "
            "give each engine a CollectorRegistry of its own, or none",
            param="metrics_registry",
        ) from error


def unregister(registry: CollectorRegistry, collector: EngineCollector) -> None:
    """Let `registry` forget `collector`, if it is there."""
    with contextlib.suppress(KeyError):
        registry.unregister(collector)
