"""The histograms of the GenAI semantic conventions, through the OpenTelemetry API alone."""

from opentelemetry import metrics

from limelight.telemetry.timeline import RequestTimeline


class GenAIMetrics:
    """Records into the meter of one provider.

    Args:
        provider: None: the global one.
    """

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter("limelight", meter_provider=provider)
        self._duration = meter.create_histogram("gen_ai.server.request.duration", unit="s")

    def request_ended(self, timeline: RequestTimeline) -> None:
        """A request has ended, or was refused."""
        assert timeline.ended_at is not None, "it has ended"
        self._duration.record(timeline.ended_at - timeline.arrived_at)
