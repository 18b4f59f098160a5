"""What the span of a step says: who was in the batch together, and where its time went."""

from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.trace import Link

from limelight.telemetry import conventions as names
from limelight.telemetry.request_attributes import Attributes
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.timeline import RequestTimeline

MAX_LINKS = 128
"""More than these are dropped by an SDK with its default limits."""


def links_to(timelines: Iterable[RequestTimeline]) -> list[Link]:
    """Links to the spans of these requests, which are recorded."""
    return [Link(timeline.span.get_span_context(), {names.REQUEST_ID: timeline.request_id}) for timeline in timelines]


def step_attributes(step: StepRecord, chunks: Sequence[Any]) -> Attributes:
    """The batch of a step, and its seconds by part.

    Args:
        chunks: the planner's, before their results are applied.
    """
    prefill = [chunk for chunk in chunks if _prefills(chunk)]
    prefill_tokens = sum(chunk.num_tokens for chunk in prefill)
    return {
        names.STEP_NUMBER: step.number,
        names.STEP_NUM_REQUESTS: len({chunk.sequence.request_id for chunk in chunks}),
        names.STEP_NUM_CHUNKS: len(chunks),
        names.STEP_NUM_PREFILL_CHUNKS: len(prefill),
        names.STEP_PREFILL_TOKENS: prefill_tokens,
        names.STEP_DECODE_TOKENS: step.num_tokens - prefill_tokens,
        names.STEP_BUSY_SECONDS: step.busy_seconds,
        names.STEP_WAIT_SECONDS: step.started_at - step.planned_at,
        **{name: seconds for name, _, seconds in _parts(step)},
    }


def longest_part(step: StepRecord) -> str:
    """Where most of its time went: "submit", "mask" or "result"."""
    return max(_parts(step), key=lambda part: part[2])[1]


def _parts(step: StepRecord) -> tuple[tuple[str, str, float], ...]:
    return (
        (names.STEP_SUBMIT_SECONDS, "submit", step.submitted_at - step.started_at),
        (names.STEP_MASK_SECONDS, "mask", step.masked_at - step.submitted_at),
        (names.STEP_RESULT_SECONDS, "result", step.ended_at - step.masked_at),
    )


def _prefills(chunk: Any) -> bool:
    """Whether it computes tokens of a prompt, or known ones again after a preemption."""
    timeline = chunk.sequence.timeline
    return not chunk.drafts and (chunk.num_tokens > 1 or timeline is None or timeline.first_token_at is None)
