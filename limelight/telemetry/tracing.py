"""Spans, through the OpenTelemetry API alone."""

from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace

from limelight.config import EngineConfig
from limelight.generation import Delta, GenerationRequest
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.timeline import RequestTimeline


class Tracing:
    """Makes the spans of one engine.

    Args:
        provider: whose tracer makes them; None: the global one.

    Attributes:
        tracer: for the spans above those of requests, too: of HTTP exchanges.
    """

    def __init__(self, config: EngineConfig, provider: trace.TracerProvider | None) -> None:
        self._config = config
        self.tracer = trace.get_tracer("limelight", tracer_provider=provider)

    def begin(self, timeline: RequestTimeline, request: GenerationRequest) -> None:
        """Open the request's span as a child of the request's own context, or of the current one."""
        parent = request.trace_context or otel_context.get_current()
        timeline.span = self.tracer.start_span(
            f"{timeline.operation} {timeline.model}", context=parent, start_time=timeline.unix_ns(timeline.arrived_at)
        )

    def end(self, timeline: RequestTimeline, output: Callable[[], Sequence[Delta]]) -> None:
        """Make the spans below it, and end it."""
        assert timeline.ended_at is not None, "it has ended"
        timeline.span.end(end_time=timeline.unix_ns(timeline.ended_at))

    def step_ended(self, step: StepRecord, chunks: Sequence[Any]) -> None:
        """Make a span of a step, if it is one of those that get one."""
