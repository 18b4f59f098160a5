"""What can be seen of a request from outside, at one moment: numbers and names, never content."""

from typing import Protocol

import msgspec
from opentelemetry import trace

from limelight.generation import FinishReason
from limelight.telemetry.timeline import Delivery, Ending, Phase, RequestTimeline
from limelight.telemetry.timings import Timings, timings


class Standing(Protocol):
    """What the scheduler knows of a request without output, as `PromptProgress`."""

    @property
    def queue_position(self) -> int:
        """From 1 on; 0: it is being served."""
        ...

    @property
    def prompt_tokens_done(self) -> int:
        """Computed, or taken from the prefix cache."""
        ...


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """How the client takes what is written for it.

    Attributes:
        num_writes, num_bytes: parts handed to the socket.
        seconds, longest_seconds: that writes waited for the socket: back-pressure.
        waiting_seconds: that the write in hand has waited by now.
    """

    num_writes: int
    num_bytes: int
    seconds: float
    longest_seconds: float
    waiting_seconds: float


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was when somebody looked.

    Attributes:
        http_request_id: `x-request-id` of the HTTP request behind it.
        owner: name of the principal that asked, never its key.
        share: whose turn it takes where requests compete: the owner's, or that of a user of a gateway.
        error_code: why it has not completed; a code, not a message, which could quote the request.
        arrived_at: Unix seconds.
        queue_position: 1 for the request that is served next; None unless it waits to be served for the first time.
        prompt_tokens: 0 until they have been counted.
        pages: KV pages in its page tables now, shared ones counted by each holder.
        page_seconds: integral of that over time, until now.
        step_seconds: its share of the time that steps took, by tokens: those of all requests sum to the engine's
            `step_seconds`. Of the step in hand it is added when that is through.
        step_share: `step_seconds` as a part of the time that all steps took while the request was there, 0 to 1.
        share_wait_seconds: that it waited because it was the turn of another share.
        num_stalls: tokens that took longer than the engine's `stall_seconds`.
        delivery: None where nothing is written for it, or nobody measures that.
        trace_id: hexadecimal, of its span.
    """

    request_id: str = msgspec.field(name="id")
    http_request_id: str | None
    owner: str
    share: str
    model: str
    operation: str
    phase: Phase
    ending: Ending | None
    error_code: str | None
    arrived_at: float
    queue_position: int | None
    prompt_tokens: int
    prompt_tokens_done: int
    cached_tokens: int
    output_tokens: int
    pages: int
    page_seconds: float
    step_seconds: float
    step_share: float
    share_wait_seconds: float
    num_preemptions: int
    num_stalls: int
    timings: Timings
    delivery: DeliveryView | None
    trace_id: str | None
    finish_reasons: tuple[FinishReason, ...]


def request_view(timeline: RequestTimeline, standing: Standing | None, now: float, steps_now: float) -> RequestView:
    """What `timeline` says by now.

    Args:
        standing: None: the scheduler does not have it, or it has output.
        now: monotonic seconds.
        steps_now: seconds of all the engine's steps by now.
    """
    choices = timeline.choices
    ended_at = timeline.ended_at
    phase = timeline.phase
    if ended_at is None:
        timeline.count_pages(now)
    step_seconds = timeline.step_seconds
    return RequestView(
        request_id=timeline.request_id,
        http_request_id=timeline.http_request_id,
        owner=timeline.owner,
        share=timeline.share,
        model=timeline.model,
        operation=timeline.operation,
        phase=phase,
        ending=timeline.ending,
        error_code=None if timeline.error is None else timeline.error.code,
        arrived_at=timeline.unix_ns(timeline.arrived_at) / 1e9,
        queue_position=(standing.queue_position or None) if standing is not None and phase is Phase.QUEUED else None,
        prompt_tokens=timeline.prompt_tokens,
        prompt_tokens_done=_prompt_tokens_done(timeline, standing),
        cached_tokens=timeline.cached_tokens,
        output_tokens=timeline.output_tokens if ended_at is not None else sum([c.num_tokens for c in choices]),
        pages=sum([choice.num_pages for choice in choices]) if ended_at is None else 0,
        page_seconds=sum([choice.page_seconds for choice in choices]),
        step_seconds=step_seconds,
        step_share=_share(
            step_seconds, (steps_now if ended_at is None else timeline.steps_after) - timeline.steps_before
        ),
        share_wait_seconds=timeline.share_wait(now if ended_at is None else ended_at),
        num_preemptions=sum([choice.num_preemptions for choice in choices]),
        num_stalls=sum([choice.num_stalls for choice in choices]),
        timings=timings(timeline),
        delivery=None if timeline.delivery is None else _delivery_view(timeline.delivery, now),
        trace_id=_trace_id(timeline.span),
        finish_reasons=timeline.finish_reasons,
    )


def _prompt_tokens_done(timeline: RequestTimeline, standing: Standing | None) -> int:
    if timeline.first_token_at is not None or timeline.ending is Ending.COMPLETED:
        return timeline.prompt_tokens
    if standing is not None:
        return standing.prompt_tokens_done
    ends = [choice.chunks[-1].start + choice.chunks[-1].num_tokens for choice in timeline.choices if choice.chunks]
    return min(max(ends, default=timeline.cached_tokens), timeline.prompt_tokens)


def _share(seconds: float, all_seconds: float) -> float:
    """At most 1: the last step of a request that was aborted may end after it."""
    return min(seconds / all_seconds, 1.0) if all_seconds > 0 else 0.0


def _delivery_view(delivery: Delivery, now: float) -> DeliveryView:
    waiting_since = delivery.waiting_since
    return DeliveryView(
        num_writes=delivery.num_writes,
        num_bytes=delivery.num_bytes,
        seconds=delivery.seconds,
        longest_seconds=delivery.longest_seconds,
        waiting_seconds=0.0 if waiting_since is None else now - waiting_since,
    )


def _trace_id(span: trace.Span | None) -> str | None:
    context = trace.INVALID_SPAN_CONTEXT if span is None else span.get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
