"""What drawing a token has in common, whether torch draws it or a recorded pass."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from limelight.step import Chunk, Sampled, SampledLogprobs, SeatSampling, StepResult

LEAST_REPETITION_PENALTY = 1e-6
"""Smaller penalties are raised to this, so that logits stay finite in float32."""


class Report(NamedTuple):
    """What one chunk tells of its rows (`Sampled` says what the two are), or why it is lost."""

    scores: tuple[SampledLogprobs, ...] = ()
    hidden: bytes = b""
    failure: str | None = None


def with_reports(chunks: Sequence[Chunk], drawn: Iterable[Sampled], reports: Iterable[Report]) -> StepResult:
    """The result of a step: what its chunks drew and what they report, each in their order."""
    drawn, reports = iter(drawn), iter(reports)
    return tuple([_result(chunk, drawn, reports) for chunk in chunks])


def _result(chunk: Chunk, drawn: Iterator[Sampled], reports: Iterator[Report]) -> Sampled | None:
    sampled = next(drawn) if chunk.sample else None
    if chunk.readout is None:
        return sampled
    report = next(reports)
    if sampled is None:
        return Sampled((), failure=report.failure, scores=report.scores, hidden=report.hidden)
    failure = sampled.failure or report.failure
    if failure is not None:
        return Sampled((), failure=failure)
    return msgspec.structs.replace(sampled, scores=report.scores, hidden=report.hidden)


def not_finite(step_number: int, best_logits: list[float]) -> str:
    """Why a chunk is lost; `best_logits` are those of its rows that count."""
    return (
        f"the model gave logits that are not finite in step {step_number} (the best of each row: {best_logits}); its "
        "weights or the adapter's may be damaged, or their dtype too narrow"
    )


def nothing_allowed(step_number: int) -> str:
    """Why a masked chunk is lost that has a row without a token to draw."""
    return (
        f"none of the tokens that may come next can be drawn in step {step_number}: what constrains the output allows "
        "none, or only such as other settings of the request rule out (min_tokens rules out the end)"
    )


def settings_of(settings: Sequence[SeatSampling | None], seat: int) -> SeatSampling:
    """Those of an occupied seat.

    Raises:
        ValueError: nobody sits there.
    """
    found = settings[seat]
    if found is None:
        raise ValueError(f"seat {seat} draws a token but was never taken")
    return found
