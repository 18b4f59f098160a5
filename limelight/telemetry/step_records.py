"""What is known of one step when it is through."""

from typing import NamedTuple


class StepRecord(NamedTuple):
    """One forward pass, in monotonic seconds.

    Attributes:
        planned_at: when its plan was complete and it was told to the runner.
        started_at, submitted_at, masked_at, ended_at: as in `StepTimes`.
        busy_seconds: its time on the runner's threads, without what overlaps the step before.
        num_chunks: sequences in its batch.
        num_tokens: computed, guesses included.
        error: the type of what made it fail; None: it gave its results.
    """

    number: int
    planned_at: float
    started_at: float
    submitted_at: float
    masked_at: float
    ended_at: float
    busy_seconds: float
    num_chunks: int
    num_tokens: int
    error: str | None
