"""OpenTelemetry's SDK, set up for this process. Importing it costs tenths of a second: only who exports does."""

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import anyio
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from prometheus_client import CollectorRegistry

from limelight import __version__
from limelight.cli.otlp_session import NotedSession
from limelight.cli.span_delivery import CountingExporter, CountingProcessor, SpanDelivery, Trouble
from limelight.cli.telemetry import ExportSettings, shown_url
from limelight.cli.terminal import handled_signals

FLUSH_SECONDS = 2.0
"""How long the end of the process waits for a collector to take the last spans."""
QUIET_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)
"""They write a line for each try and each batch; what they say is counted and told by `Trouble`."""


class Exporting:
    """The providers of this process, and what is still to be sent.

    Attributes:
        tracer_provider, meter_provider: for the engine; None: that signal is not exported.
        delivery: counts what becomes of spans; None: they go to no collector.
    """

    def __init__(self, settings: ExportSettings) -> None:
        for name in QUIET_LOGGERS:
            logging.getLogger(name).addFilter(_is_for_debugging)
        logging.getLogger("opentelemetry.util.re").addFilter(_without_header)
        resource = _resource()
        self._hurried = anyio.Event()
        self.delivery: SpanDelivery | None = None
        self._session = NotedSession()
        self.tracer_provider = self._trace(settings, resource) if settings.exports_traces else None
        self.meter_provider = _measure(settings, resource) if settings.exports_metrics else None

    def make_global(self) -> None:
        """Let other libraries' instrumentation in this process go the same way."""
        if self.tracer_provider is not None:
            trace.set_tracer_provider(self.tracer_provider)
        if self.meter_provider is not None:
            metrics.set_meter_provider(self.meter_provider)

    def register(self, registry: CollectorRegistry) -> None:
        """Have a Prometheus registry tell what becomes of spans."""
        if self.delivery is not None:
            registry.register(self.delivery)

    def hurry(self) -> None:
        """Do not wait for the collector at the end."""
        self._hurried.set()

    async def close(self) -> str | None:
        """Send what waits, in threads: for `FLUSH_SECONDS` at the most, and not after another signal.

        Returns:
            What to tell of spans that got nowhere; None: there are none.
        """
        threads = _Threads()
        if self.tracer_provider is not None:
            threads.start(self.tracer_provider.shutdown)
        if self.meter_provider is not None:
            threads.start(self.meter_provider.shutdown)
        with handled_signals(self.hurry):
            async with anyio.create_task_group() as group:
                group.start_soon(self._limit, group.cancel_scope)
                await threads.wait()
                group.cancel_scope.cancel()
        if self.delivery is None:
            return None
        return self.delivery.summary(self._session.reason or "there was no time to wait for an answer")

    async def _limit(self, scope: anyio.CancelScope) -> None:
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._hurried.wait()
        scope.cancel()

    def _trace(self, settings: ExportSettings, resource: Resource) -> TracerProvider:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # at exit it would wait for the collector
        if settings.traces_url is not None:
            exporter = OTLPSpanExporter(endpoint=settings.traces_url, session=self._session)
            self.delivery = SpanDelivery(settings.queue_size, Trouble("spans", shown_url(settings.traces_url)))
            queue = _batches(CountingExporter(exporter, self.delivery, self._session.outcome), settings)
            provider.add_span_processor(CountingProcessor(queue, self.delivery))
        if settings.traces_on_console:
            provider.add_span_processor(_batches(ConsoleSpanExporter(), settings))
        return provider


class TellingMetricExporter(OTLPMetricExporter):
    """Says in the log when metrics get nowhere."""

    def __init__(self, url: str) -> None:
        self._noted = NotedSession()
        self._trouble = Trouble("metrics", shown_url(url))
        super().__init__(endpoint=url, session=self._noted)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send them."""
        result = super().export(metrics_data, timeout_millis, **kwargs)
        if result is MetricExportResult.SUCCESS:
            self._trouble.over()
        else:
            self._trouble.lost(1, self._noted.reason or "unknown")
        return result


class _Threads:
    """Daemon threads that may be left behind: a process can end while one of them waits for a collector."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends: list[asyncio.Event] = []

    def start(self, work: Callable[[], None]) -> None:
        ended = asyncio.Event()
        self._ends.append(ended)
        threading.Thread(target=self._run, args=(work, ended), name="limelight-flush", daemon=True).start()

    async def wait(self) -> None:
        for ended in self._ends:
            await ended.wait()

    def _run(self, work: Callable[[], None], ended: asyncio.Event) -> None:
        with contextlib.suppress(Exception):  # the SDK raises when time runs out; what is lost has been counted
            work()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(ended.set)


def has_global_provider() -> bool:
    """Whether somebody else, like `opentelemetry-instrument`, has set up the SDK in this process."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _batches(exporter: SpanExporter, settings: ExportSettings) -> BatchSpanProcessor:
    return BatchSpanProcessor(exporter, max_queue_size=settings.queue_size, max_export_batch_size=settings.batch_size)


def _measure(settings: ExportSettings, resource: Resource) -> MeterProvider:
    exporters: list[MetricExporter] = []
    if settings.metrics_url is not None:
        exporters.append(TellingMetricExporter(settings.metrics_url))
    if settings.metrics_on_console:
        exporters.append(ConsoleMetricExporter())
    readers = [PeriodicExportingMetricReader(exporter) for exporter in exporters]
    return MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)


def _resource() -> Resource:
    """Who sends: what the variables say, and what they leave out."""
    found = Resource.create()
    own = {SERVICE_VERSION: __version__, SERVICE_INSTANCE_ID: str(uuid.uuid4())}
    missing = {name: value for name, value in own.items() if name not in found.attributes}
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        missing[SERVICE_NAME] = "limelight"
    return found.merge(Resource(missing))


def _without_header(record: logging.LogRecord) -> bool:
    """Has the SDK say that it leaves out a header without writing the header, which is a key mostly."""
    record.msg = "a header in OTEL_EXPORTER_OTLP_HEADERS, or in that of one signal, is left out: it is not NAME=VALUE"
    record.args = ()
    return True


def _is_for_debugging(_record: logging.LogRecord) -> bool:
    return logging.getLogger("limelight").isEnabledFor(logging.DEBUG)
