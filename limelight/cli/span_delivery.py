"""What becomes of spans on their way to a collector, counted: none is lost without a number.

A dead collector costs dropped spans and nothing else. The log says so once, and then once a minute at the most.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 60.0


class Trouble:
    """Tells the log that something cannot be delivered: at once, then each minute at the most, and when it is over.

    Args:
        what: "spans" or "metrics".
        url: where they do not get, as it may be shown.
        clock: monotonic seconds.
    """

    def __init__(self, what: str, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self.url = url
        self._clock = clock
        self._told_at: float | None = None
        self._num_untold = 0

    def lost(self, number: int, reason: str) -> None:
        """So many have been lost since the last call."""
        self._num_untold += number
        if self._told_at is None:
            logger.warning(
                "%s cannot be delivered to %s: %s; they are dropped until they can", self.what, self.url, reason
            )
        elif self._clock() - self._told_at < SECONDS_BETWEEN_LINES:
            return
        else:
            logger.warning("%d %s could not be delivered to %s: %s", self._num_untold, self.what, self.url, reason)
        self._told_at = self._clock()
        self._num_untold = 0

    def over(self) -> None:
        """Something has been delivered."""
        if self._told_at is not None:
            logger.info("%s are delivered to %s again", self.what, self.url)
            self._told_at = None
            self._num_untold = 0


class SpanDelivery(Collector):
    """Counts spans by what became of them. Any thread may call it.

    Args:
        queue_size: spans that may wait.
        trouble: told of losses, on the exporter's thread.

    Attributes:
        num_ended: sampled spans that have ended.
        num_exported: those that the collector has taken.
        num_failed: those that it has not, or not in time.
        num_dropped: those that found the queue full.
        reason: why the last loss happened.
    """

    def __init__(self, queue_size: int, trouble: Trouble) -> None:
        self.num_ended = self.num_exported = self.num_failed = self.num_dropped = 0
        self.reason: str | None = None
        self._queue_size = queue_size
        self._trouble = trouble
        self._num_queued = 0
        self._num_told = 0
        self._lock = threading.Lock()

    def admit(self) -> bool:
        """A span has ended; whether the queue has room for it."""
        with self._lock:
            self.num_ended += 1
            if self._num_queued >= self._queue_size:
                self.num_dropped += 1
                return False
            self._num_queued += 1
            return True

    def begin(self, number: int) -> None:
        """So many have left the queue."""
        with self._lock:
            self._num_queued -= number

    def end(self, num_exported: int, num_failed: int, reason: str | None) -> None:
        """So many have been taken by the collector, so many have not, for a reason."""
        with self._lock:
            self.num_exported += num_exported
            self.num_failed += num_failed
            num_lost = self.num_failed + self.num_dropped - self._num_told
            self._num_told += num_lost
            why = reason or f"more than {self._queue_size} waited to be sent"
            if num_lost:
                self.reason = why
        if num_lost:
            self._trouble.lost(num_lost, why)
        elif num_exported:
            self._trouble.over()

    def summary(self, pending: str) -> str | None:
        """What to say at the end; None if everything has been delivered.

        Args:
            pending: why what has neither arrived nor failed yet will not arrive.
        """
        with self._lock:
            missing, reason = self.num_ended - self.num_exported, self.reason or pending
            if not missing:
                return None
            return f"{missing} of {self.num_ended} spans were not delivered to {self._trouble.url} ({reason})"

    def collect(self) -> Iterable[CounterMetricFamily]:
        """For Prometheus; what still waits is in none of them."""
        family = CounterMetricFamily(
            "limelight_trace_spans",
            "Spans by what became of them: exported, failed (not taken by the collector), dropped (too many waited).",
            labels=["outcome"],
        )
        with self._lock:
            family.add_metric(["exported"], self.num_exported)
            family.add_metric(["failed"], self.num_failed)
            family.add_metric(["dropped"], self.num_dropped)
        yield family


class CountingProcessor(SpanProcessor):
    """Hands ended spans to `queue`, a batch processor, as long as it has room; never waits."""

    def __init__(self, queue: SpanProcessor, delivery: SpanDelivery) -> None:
        self._queue = queue
        self._delivery = delivery

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended; one that is not sampled goes nowhere."""
        if span.context is not None and span.context.trace_flags.sampled and self._delivery.admit():
            self._queue.on_end(span)

    def shutdown(self) -> None:
        """Send what waits, then end; may wait long."""
        self._queue.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits; may wait long."""
        return self._queue.force_flush(timeout_millis)


class CountingExporter(SpanExporter):
    """Sends spans by `exporter`, on the batch processor's thread.

    Args:
        outcome: how the last request of the exporter went: how many of the spans of a successful one were rejected, and
            the reason of a loss.
    """

    def __init__(
        self, exporter: SpanExporter, delivery: SpanDelivery, outcome: Callable[[], tuple[int, str | None]]
    ) -> None:
        self._exporter = exporter
        self._delivery = delivery
        self._outcome = outcome

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them, with the exporter's own retries."""
        self._delivery.begin(len(spans))
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs these spans only
            self._delivery.end(0, len(spans), type(error).__name__)
            return SpanExportResult.FAILURE
        num_rejected, reason = self._outcome()
        num_failed = min(num_rejected, len(spans)) if result is SpanExportResult.SUCCESS else len(spans)
        self._delivery.end(len(spans) - num_failed, num_failed, reason)
        return result

    def shutdown(self) -> None:
        """End a wait between two tries."""
        self._exporter.shutdown()
