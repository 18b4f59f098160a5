"""Writes down what scheduling does: into the timelines of the choices, and into the totals of the steps.

The scheduler's own clock and memory, beside the planner, which has neither. All numbers are kept whether or not anybody
looks; what is done per token is a few additions.
"""

import time
from collections.abc import Iterable

from limelight.actors.messages import StepTimes
from limelight.actors.scheduling.in_flight import PlannedChunk
from limelight.actors.scheduling.planner import Progress
from limelight.actors.scheduling.sequence import Sequence
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import InterruptionKind, PrefillChunk


class StepLedger:
    """An `Observer` of the planner, told of results by the scheduler actor.

    Attributes:
        num_steps: that are through.
        step_seconds: during which at least one step was on the runner's threads.
    """

    def __init__(self, telemetry: Telemetry, stall_seconds: float) -> None:
        self._telemetry = telemetry
        self._stall_seconds = stall_seconds
        self._planned_at: dict[int, float] = {}
        self._last_ended_at = 0.0
        self._number = 0  # of the step that is being planned, or was planned last
        self.num_steps = 0
        self.step_seconds = 0.0

    # ---- from the planner

    def seated(self, sequence: Sequence) -> None:
        """See `Observer`."""
        timeline = sequence.timeline
        if timeline is None:
            return
        now = time.monotonic()
        timeline.pages_counted_at = now
        if timeline.scheduled_at is None:
            timeline.scheduled_at = now
        else:
            timeline.interrupted(InterruptionKind.RESUMED, now, self._number)

    def unseats(self, sequence: Sequence) -> None:
        """See `Observer`."""
        timeline = sequence.timeline
        if timeline is None:
            return
        now = time.monotonic()
        timeline.page_seconds += len(sequence.pages) * (now - timeline.pages_counted_at)
        timeline.pages_counted_at = 0.0
        if timeline.ended_at is None:
            timeline.interrupted(InterruptionKind.PREEMPTED, now, self._number)

    def planned(self, number: int, chunks: list[PlannedChunk]) -> None:
        """See `Observer`."""
        self._planned_at[number] = time.monotonic()
        self._number = number + 1
        for chunk in chunks:
            timeline = chunk.sequence.timeline
            if timeline is not None and timeline.first_token_at is None:
                timeline.cached_tokens = chunk.sequence.cached_tokens

    def ended(self, sequence: Sequence) -> None:
        """See `Observer`."""
        if sequence.timeline is not None:
            sequence.timeline.ended_at = time.monotonic()

    # ---- from the scheduler

    def completed(self, number: int, chunks: list[PlannedChunk], times: StepTimes) -> None:
        """A step is through; its results have not been applied yet, so `chunks` still hold their pages."""
        planned_at = self._planned_at.pop(number)
        ended_at = times.ended_at
        busy_seconds = ended_at - max(times.started_at, self._last_ended_at)
        self._last_ended_at = ended_at
        self.num_steps += 1
        self.step_seconds += busy_seconds
        num_tokens = sum([chunk.num_tokens for chunk in chunks])
        per_token = busy_seconds / num_tokens
        for chunk in chunks:
            sequence = chunk.sequence
            timeline = sequence.timeline
            if timeline is None:
                continue
            timeline.step_seconds += per_token * chunk.num_tokens
            if sequence.seat is not None:
                timeline.page_seconds += len(sequence.pages) * (ended_at - timeline.pages_counted_at)
                timeline.pages_counted_at = ended_at
            if not chunk.drafts and (chunk.num_tokens > 1 or timeline.first_token_at is None):
                timeline.computed(PrefillChunk(number, planned_at, ended_at, chunk.start, chunk.num_tokens))
        self._telemetry.step_ended(
            StepRecord(
                number=number,
                planned_at=planned_at,
                started_at=times.started_at,
                submitted_at=times.submitted_at,
                masked_at=times.masked_at,
                ended_at=ended_at,
                busy_seconds=busy_seconds,
                num_chunks=len(chunks),
                num_tokens=num_tokens,
            ),
            chunks,
        )

    def failed(self, number: int) -> None:
        """A step is through and gave nothing."""
        self._planned_at.pop(number, None)

    def drew(self, number: int, progresses: Iterable[Progress]) -> None:
        """The results of step `number` have been applied."""
        now = time.monotonic()
        gap, num_gaps = 0.0, 0  # most tokens of a step follow those of the same step before
        counters = self._telemetry.counters
        observe = counters.inter_token_seconds.observe
        for progress in progresses:
            timeline = progress.sequence.timeline
            if timeline is None:
                continue
            num_tokens = len(progress.token_ids)
            if progress.num_drafts:
                counters.accepted_drafts[progress.num_accepted] += 1
            timeline.finish_reason = progress.finish_reason
            if not num_tokens:
                continue
            last = timeline.last_token_at
            timeline.last_token_at = now
            timeline.num_tokens += num_tokens
            if last is None:
                timeline.first_token_at = now
                continue
            seconds = now - last
            if seconds != gap:
                if num_gaps:
                    observe(gap, num_gaps)
                gap, num_gaps = seconds, 0
            num_gaps += 1
            if seconds > self._stall_seconds:
                counters.num_stalls += 1
                timeline.interrupted(InterruptionKind.STALL, now, number, seconds)
        if num_gaps:
            observe(gap, num_gaps)
