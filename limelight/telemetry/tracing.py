"""Spans, through the OpenTelemetry API alone.

A request's span is open from the call to the end; those below it are made of its timeline after that. Every span is
given its parent and its times: none is ever the current one, so none can leak into a caller's context or another
request. What a host's tracer raises is logged once and harms nobody.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from limelight import __version__
from limelight.config import EngineConfig
from limelight.generation import Delta, GenerationRequest
from limelight.quoting import encodable
from limelight.telemetry import conventions as names
from limelight.telemetry.content import input_attributes, output_attributes
from limelight.telemetry.owed_spans import OwedSpans
from limelight.telemetry.request_attributes import creation_attributes, older_attributes, span_name
from limelight.telemetry.shield import Shield
from limelight.telemetry.span_tree import REQUEST, SpanRecord, each_span
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.step_spans import MAX_LINKS, links_to, longest_part, step_attributes
from limelight.telemetry.timeline import RequestTimeline


class Tracing:
    """Makes the spans of one engine.

    Args:
        config: `stall_seconds` and the fields that begin with `trace_` are used.
        provider: whose tracer makes them; None: the global one.

    Attributes:
        tracer: for the spans above those of requests, too: of HTTP exchanges.
        owed: those of requests that have ended a moment ago.
    """

    def __init__(self, config: EngineConfig, provider: trace.TracerProvider | None) -> None:
        self._config = config
        self._shield = Shield("the tracer")
        self.owed = OwedSpans()
        self.tracer = trace.get_tracer(names.SCOPE, __version__, tracer_provider=provider)

    def begin(self, timeline: RequestTimeline, request: GenerationRequest) -> None:
        """Open the request's span as a child of the request's own context, or of the current one."""
        with self._shield:
            parent = otel_context.get_current() if request.trace_context is None else request.trace_context
            span = self.tracer.start_span(
                span_name(timeline),
                context=parent,
                attributes=creation_attributes(timeline),
                start_time=timeline.unix_ns(timeline.arrived_at),
            )
            timeline.open_span = span
            context = span.get_span_context()
            if isinstance(context, trace.SpanContext):
                timeline.span = trace.NonRecordingSpan(context)
            if span.is_recording():
                timeline.span_ids[REQUEST] = _span_id(span)
                above = trace.get_current_span(parent)
                if above.get_span_context().is_valid:
                    timeline.parent_span_id = _span_id(above)
                if self._config.trace_content:
                    span.set_attributes(input_attributes(request.prompt))

    def end(self, timeline: RequestTimeline, output: Callable[[], Sequence[Delta]]) -> None:
        """Make the spans below it, and end it; of a request that was admitted in turns of the loop that come."""
        span, timeline.open_span = timeline.open_span, None
        if span is None:
            return
        spans = self._spans(timeline, span, output)
        if REQUEST in timeline.span_ids and timeline.admitted_at is not None:
            self.owed.add(spans)
        else:
            for _ in spans:
                pass

    def step_ended(self, step: StepRecord, chunks: Sequence[Any], live: Mapping[str, RequestTimeline]) -> None:
        """Make a span of a step if its number is one of those that get one, or if it stalled or failed.

        Args:
            chunks: the planner's.
            live: timelines by request id.
        """
        stalled = step.busy_seconds > self._config.stall_seconds
        interval = self._config.trace_step_interval
        if not stalled and step.error is None and (not interval or step.number % interval):
            return
        with self._shield:
            ids = dict.fromkeys(chunk.sequence.request_id for chunk in chunks)
            linked = [live[request_id] for request_id in ids if request_id in live]
            linked = [timeline for timeline in linked if recorded_trace_id(timeline) is not None]
            if linked:
                self._record_step(step, chunks, linked, stalled)

    def _spans(
        self, timeline: RequestTimeline, span: trace.Span, output: Callable[[], Sequence[Delta]]
    ) -> Iterator[None]:
        """Make one span below it at each step, and end it with the last."""
        assert timeline.ended_at is not None, "it has ended"
        with self._shield:
            if span.is_recording():
                yield from self._complete(timeline, span, output)
        with self._shield:
            span.end(end_time=timeline.unix_ns(timeline.ended_at))

    def _complete(
        self, timeline: RequestTimeline, span: trace.Span, output: Callable[[], Sequence[Delta]]
    ) -> Iterator[None]:
        records = each_span(timeline)
        root = next(records)
        span.set_attributes(root.attributes)
        if self._config.trace_vllm_attributes:
            span.set_attributes(older_attributes(timeline))
        if root.error is not None:
            span.set_status(trace.StatusCode.ERROR, self._description(timeline, root.error))
        if self._config.trace_content and timeline.ending is not None:
            span.set_attributes(output_attributes(output(), timeline.ending.value))
        contexts = {REQUEST: trace.set_span_in_context(span, Context())}
        for record in records:
            assert record.parent is not None, "only the request's span has no parent"
            child = self._record(record, timeline, contexts[record.parent])
            contexts[record.key] = trace.set_span_in_context(child, Context())
            yield

    def _description(self, timeline: RequestTimeline, description: str) -> str:
        """Why it failed; the whole message, which may quote the request, only for those who ask for content."""
        if self._config.trace_content and timeline.error is not None:
            return encodable(timeline.error.message)
        return description

    def _record(self, record: SpanRecord, timeline: RequestTimeline, context: Context) -> trace.Span:
        span = self.tracer.start_span(
            record.name, context=context, attributes=record.attributes, start_time=timeline.unix_ns(record.start)
        )
        try:
            timeline.span_ids[record.key] = _span_id(span)
            for event in record.events:
                span.add_event(event.name, event.attributes, timeline.unix_ns(event.at))
        finally:
            span.end(end_time=timeline.unix_ns(record.end))
        return span

    def _record_step(
        self, step: StepRecord, chunks: Sequence[Any], linked: Sequence[RequestTimeline], stalled: bool
    ) -> None:
        """A trace of its own: it belongs to all requests in its batch alike."""
        clock = linked[0]
        attributes = step_attributes(step, chunks)
        attributes[names.STEP_STALLED] = stalled
        if stalled:
            attributes[names.STEP_LONGEST_PART] = longest_part(step)
        if step.error is not None:
            attributes[names.ERROR_TYPE] = step.error
        if len(linked) > MAX_LINKS:
            attributes[names.STEP_LINKS_LEFT_OUT] = len(linked) - MAX_LINKS
        span = self.tracer.start_span(
            names.SPAN_STEP,
            context=Context(),
            attributes=attributes,
            links=links_to(linked[:MAX_LINKS]),
            start_time=clock.unix_ns(step.planned_at),
        )
        if step.error is not None:
            span.set_status(trace.StatusCode.ERROR, f"the forward pass failed: {step.error}")
        span.end(end_time=clock.unix_ns(step.ended_at))


def _span_id(span: trace.Span) -> str:
    return trace.format_span_id(span.get_span_context().span_id)


def recorded_trace_id(timeline: RequestTimeline) -> str | None:
    """The hexadecimal trace id of a request that is recorded and sampled: one that can be looked up; None of others."""
    context = timeline.span.get_span_context()
    if REQUEST not in timeline.span_ids or not context.trace_flags.sampled:
        return None
    return trace.format_trace_id(context.trace_id)
