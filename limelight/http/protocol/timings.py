"""`timings` of an answer, for those who ask with `return_timings`."""

from collections.abc import Iterable

import msgspec

from limelight.telemetry.timeline import RequestTimeline
from limelight.telemetry.timings import Timings, timings


class TimingsObject(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds, null for what never happened. Several prompts in one request: the longest time of each part.

    Attributes:
        cached_tokens: prompt tokens that did not have to be computed.
    """

    admission_ms: float | None
    tokenize_ms: float | None
    queue_ms: float | None
    prefill_ms: float | None
    time_to_first_token_ms: float | None
    decode_ms: float | None
    per_token_ms: float | None
    total_ms: float | None
    cached_tokens: int


AnswerTimings = TimingsObject | msgspec.UnsetType
"""`timings` of an answer: left out unless asked for."""


def timings_object(timelines: Iterable[RequestTimeline]) -> TimingsObject:
    """What is known of the requests behind one answer."""
    known = list(timelines)
    seconds = msgspec.structs.asdict(longest(known))
    milliseconds = {f"{name}_ms": None if took is None else round(took * 1e3, 3) for name, took in seconds.items()}
    return TimingsObject(**milliseconds, cached_tokens=sum(timeline.cached_tokens for timeline in known))


def asked_timings(asked: bool | None, timelines: Iterable[RequestTimeline]) -> AnswerTimings:
    """`timings` of an answer that is complete."""
    return timings_object(timelines) if asked else msgspec.UNSET


def longest(timelines: Iterable[RequestTimeline]) -> Timings:
    """Of each part the longest time that it took any of them."""
    every = [timings(timeline) for timeline in timelines]
    if len(every) == 1:
        return every[0]
    known = {
        name: [took for one in every if (took := getattr(one, name)) is not None] for name in Timings.__struct_fields__
    }
    return Timings(**{name: max(values, default=None) for name, values in known.items()})
