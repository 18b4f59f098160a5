"""How long the parts of a request took, for people, headers and histograms."""

import msgspec

from limelight.telemetry.timeline import ChoiceTimeline, RequestTimeline


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; None for what has not been reached, or never was.

    With several choices `queue` and `prefill` are those of the choice that was first, `decode` runs to the last token
    of all, and `per_token` is the mean over the choices.

    Attributes:
        admission: from the call until the engine took it.
        tokenize: until its token ids, and its constraints if it has any, were there.
        queue: from there until the first step that carries it was planned.
        prefill: from there until its first token.
        time_to_first_token: from the call until its first token: all of the above.
        decode: from the first token to the last one.
        per_token: mean time between two tokens.
        total: from the call to the end.
    """

    admission: float | None = None
    tokenize: float | None = None
    queue: float | None = None
    prefill: float | None = None
    time_to_first_token: float | None = None
    decode: float | None = None
    per_token: float | None = None
    total: float | None = None


def timings(timeline: RequestTimeline) -> Timings:
    """What is known of `timeline` by now."""
    scheduled_at, first_token_at = timeline.scheduled_at, timeline.first_token_at
    return Timings(
        admission=_between(timeline.arrived_at, timeline.admitted_at),
        tokenize=_between(timeline.admitted_at, timeline.submitted_at),
        queue=_between(timeline.submitted_at, scheduled_at),
        prefill=_between(scheduled_at, first_token_at),
        time_to_first_token=_between(timeline.arrived_at, first_token_at),
        decode=_between(first_token_at, timeline.last_token_at),
        per_token=_mean([per_token for choice in timeline.choices if (per_token := _per_token(choice)) is not None]),
        total=_between(timeline.arrived_at, timeline.ended_at),
    )


def _per_token(choice: ChoiceTimeline) -> float | None:
    seconds = _between(choice.first_token_at, choice.last_token_at)
    return None if seconds is None or choice.num_tokens < 2 else seconds / (choice.num_tokens - 1)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
