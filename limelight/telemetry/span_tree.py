"""The spans of one request, derived from its timeline: what traces, waterfalls and exports show alike.

Nothing is measured here. Whatever moment the request is at, or was cut off at, its children follow each other without
a gap: admission, tokenize (with constraints beside it), then for each choice queue, prefill and decode.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from limelight.telemetry import conventions as names
from limelight.telemetry.request_attributes import Attributes, error_description, request_attributes, span_name
from limelight.telemetry.request_attributes import AttributeValue as AttributeValue
from limelight.telemetry.timeline import ChoiceTimeline, Interruption, InterruptionKind, PrefillChunk, RequestTimeline

REQUEST = "request"
"""Key of the request's own span."""


class SpanEvent(NamedTuple):
    """Something that happened within a span, at a monotonic time."""

    name: str
    at: float
    attributes: dict[str, AttributeValue]


@dataclass(slots=True)
class SpanRecord:
    """One span.

    Attributes:
        key: unique in its request: "request", "queue", "choice 1/decode".
        parent: key of the span above it; None for the request's own.
        start, end: monotonic seconds.
        error: why its status is an error; None: it is not.
    """

    key: str
    name: str
    parent: str | None
    start: float
    end: float
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    error: str | None = None


def spans_of(timeline: RequestTimeline, now: float | None = None) -> list[SpanRecord]:
    """All spans of a request, parents before children, siblings in order of time.

    What the scheduler noted after the request's end, before it heard of it, is left out.

    Args:
        now: where the open spans of a live request end, in monotonic seconds; None: at this moment.
    """
    return list(each_span(timeline, now))


def each_span(timeline: RequestTimeline, now: float | None = None) -> Iterator[SpanRecord]:
    """The same one by one: with many choices all of them together take a while."""
    end = timeline.ended_at
    if end is None:
        end = max(timeline.arrived_at, time.monotonic() if now is None else now)
    yield SpanRecord(
        REQUEST,
        span_name(timeline),
        None,
        timeline.arrived_at,
        end,
        request_attributes(timeline),
        error=error_description(timeline),
    )
    yield from _preparation(timeline, end)
    if timeline.submitted_at is not None and timeline.submitted_at <= end:
        choices = timeline.choices
        ends = [end if choice.ended_at is None else min(end, choice.ended_at) for choice in choices]
        ends[ends.index(max(ends))] = end  # its last text is still made and told
        for choice, choice_end in zip(choices, ends, strict=True):
            yield from _choice(choice, timeline.submitted_at, choice_end, timeline)


def _preparation(timeline: RequestTimeline, end: float) -> list[SpanRecord]:
    """Admission and what follows until the scheduler is told."""
    admitted_at = _within(timeline.admitted_at, end)
    spans = [_child(names.SPAN_ADMISSION, timeline.arrived_at, end if admitted_at is None else admitted_at)]
    if admitted_at is None:
        return spans
    encoded_at, compiled_at = _within(timeline.encoded_at, end), _within(timeline.compiled_at, end)
    submitted_at = _within(timeline.submitted_at, end)
    prepared_at = end if submitted_at is None else submitted_at
    waits_for_constraints = encoded_at is not None and submitted_at is None and compiled_at is None
    outlasted = encoded_at is not None and compiled_at is not None and compiled_at > encoded_at
    tokenize = _child(names.SPAN_TOKENIZE, admitted_at, prepared_at)
    spans.append(tokenize)
    if encoded_at is not None:
        tokenize.attributes[names.TOKENIZER_SECONDS] = timeline.encode_seconds
        tokenize.attributes[names.PROMPT_TOKENS] = timeline.prompt_tokens
        if waits_for_constraints or outlasted:  # the two are asked for at the same time
            tokenize.end = encoded_at
            spans.append(_child(names.SPAN_CONSTRAINTS, admitted_at, prepared_at))
    return spans


def _choice(choice: ChoiceTimeline, start: float, end: float, timeline: RequestTimeline) -> list[SpanRecord]:
    """Queue, prefill and decode, as far as the choice has come; below a span of its own if there are several."""
    parent, prefix = REQUEST, ""
    spans = []
    if timeline.num_choices > 1:
        parent = f"{names.SPAN_CHOICE} {choice.index}"
        prefix = f"{parent}/"
        attributes: Attributes = {names.CHOICE_INDEX: choice.index}
        if choice.finish_reason is not None:
            attributes[names.FINISH_REASON] = choice.finish_reason.value
        spans.append(SpanRecord(parent, parent, REQUEST, start, end, attributes))
    scheduled_at, first_token_at = _within(choice.scheduled_at, end), _within(choice.first_token_at, end)
    queue_end = end if scheduled_at is None else scheduled_at
    spans.append(SpanRecord(prefix + names.SPAN_QUEUE, names.SPAN_QUEUE, parent, start, queue_end))
    if scheduled_at is None:
        return spans
    prefill_end = end if first_token_at is None else first_token_at
    prefill = SpanRecord(prefix + names.SPAN_PREFILL, names.SPAN_PREFILL, parent, scheduled_at, prefill_end)
    prefill.attributes = {
        names.PROMPT_TOKENS: timeline.prompt_tokens,
        names.CACHED_TOKENS: choice.cached_tokens,
        names.NUM_CHUNKS: choice.num_chunks - sum(chunk.done_at > prefill_end for chunk in choice.chunks),
    }
    prefill.events = _events(choice, scheduled_at, prefill_end)
    spans.append(prefill)
    if first_token_at is None:
        return spans
    decode = SpanRecord(prefix + names.SPAN_DECODE, names.SPAN_DECODE, parent, first_token_at, end)
    decode.attributes = {
        names.NUM_TOKENS: choice.num_tokens,
        names.NUM_PREEMPTIONS: choice.num_preemptions,
        names.NUM_STALLS: choice.num_stalls,
    }
    decode.events = [SpanEvent(names.EVENT_FIRST_TOKEN, first_token_at, {}), *_events(choice, first_token_at, end)]
    last_token_at = _within(choice.last_token_at, end)
    if choice.finish_reason is not None and last_token_at is not None:
        decode.events.append(SpanEvent(names.EVENT_LAST_TOKEN, last_token_at, {}))
    spans.append(decode)
    return spans


def _events(choice: ChoiceTimeline, start: float, end: float) -> list[SpanEvent]:
    """Chunks and interruptions after `start`, in order of time."""
    happened = [(chunk.done_at, _chunk(chunk)) for chunk in choice.chunks]
    happened += [(interruption.at, _interruption(interruption)) for interruption in choice.interruptions]
    events = [event for at, event in happened if start < at <= end]
    return sorted(events, key=lambda event: event.at)


def _chunk(chunk: PrefillChunk) -> SpanEvent:
    attributes: Attributes = {
        names.STEP_NUMBER: chunk.step,
        names.CHUNK_START: chunk.start,
        names.CHUNK_TOKENS: chunk.num_tokens,
        names.CHUNK_SECONDS: chunk.done_at - chunk.planned_at,
    }
    return SpanEvent(names.EVENT_CHUNK, chunk.done_at, attributes)


def _interruption(interruption: Interruption) -> SpanEvent:
    attributes: Attributes = {names.STEP_NUMBER: interruption.step}
    if interruption.kind is InterruptionKind.STALL:
        attributes[names.STALL_SECONDS] = interruption.seconds
    return SpanEvent(_EVENTS[interruption.kind], interruption.at, attributes)


_EVENTS = {
    InterruptionKind.PREEMPTED: names.EVENT_PREEMPTED,
    InterruptionKind.RESUMED: names.EVENT_RESUMED,
    InterruptionKind.STALL: names.EVENT_STALL,
}


def _child(name: str, start: float, end: float) -> SpanRecord:
    return SpanRecord(name, name, REQUEST, start, end)


def _within(at: float | None, end: float) -> float | None:
    """A time that counts: what is noted after the end does not."""
    return at if at is not None and at <= end else None
