"""Writes down what scheduling does: into the timelines of the choices, and into the totals of the steps.

The scheduler's own clock and memory, beside the planner, which has neither. All numbers are kept whether or not anybody
looks; what is done per token is a few additions.
"""

import time

from limelight.actors.messages import StepTimes
from limelight.actors.recorder import ScheduleRecorder
from limelight.actors.scheduling.in_flight import PlannedChunk
from limelight.actors.scheduling.planner import Progress
from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.step_costs import StepCosts, StepLoad, context_of
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import ChoiceTimeline, InterruptionKind, PrefillChunk


class StepLedger:
    """An `Observer` of the planner, told of results by the scheduler actor.

    Args:
        recorded: told as well, while requests are recorded.

    Attributes:
        num_steps: that are through, failed ones included.
        num_failures_in_a_row: steps that failed since the last one that did not.
        failed_in_a_row: ids of the requests in them.
        last_ended_at: when the last step ended, in monotonic seconds; 0 before the first.
        longest_step_seconds: of all that did not fail.
        step_costs: learns from those that did not fail.
    """

    def __init__(self, telemetry: Telemetry, stall_seconds: float, recorded: ScheduleRecorder | None = None) -> None:
        self._telemetry = telemetry
        self._recorded = recorded or ScheduleRecorder()
        self._stall_seconds = stall_seconds
        self._planned_at: dict[int, float] = {}
        self._number = 0  # of the step that is being planned, or was planned last
        self.num_steps = 0
        self.num_failures_in_a_row = 0
        self.failed_in_a_row: set[str] = set()
        self.last_ended_at = 0.0
        self.longest_step_seconds = 0.0
        self.step_costs = StepCosts()

    @property
    def oldest_step(self) -> tuple[int, float] | None:
        """Number of the step in hand, and since when it is, in monotonic seconds; None: there is none."""
        for number, planned_at in self._planned_at.items():
            return number, max(planned_at, self.last_ended_at)
        return None

    # ---- from the planner

    def seated(self, sequence: Sequence) -> None:
        """See `Observer`."""
        if self._recorded.recorders:
            self._recorded.happened("seated", self._number, sequence)
        timeline = sequence.timeline
        if timeline is None:
            return
        now = time.monotonic()
        timeline.passed_over_until(now)
        if timeline.scheduled_at is None:
            timeline.scheduled_at = now
        else:
            timeline.interrupted(InterruptionKind.RESUMED, now, self._number)

    def unseats(self, sequence: Sequence) -> None:
        """See `Observer`."""
        if sequence.meter is not None:
            sequence.meter.unseats(sequence)
        timeline = sequence.timeline
        if timeline is None:
            return
        now = time.monotonic()
        timeline.holds(0, now)
        if timeline.ended_at is None:
            if self._recorded.recorders:
                self._recorded.happened("unseated", self._number, sequence)
            timeline.interrupted(InterruptionKind.PREEMPTED, now, self._number)

    def passed_over(self, sequence: Sequence) -> None:
        """See `Observer`."""
        if sequence.timeline is not None:
            sequence.timeline.passed_over_at = time.monotonic()

    def planned(self, number: int, chunks: list[PlannedChunk]) -> None:
        """See `Observer`."""
        self._planned_at[number] = now = time.monotonic()
        self._number = number + 1
        if self._recorded.recorders:
            self._recorded.planned(number, chunks)
        for chunk in chunks:
            timeline = chunk.sequence.timeline
            if timeline is None:
                continue
            num_pages = len(chunk.sequence.pages)
            if num_pages != timeline.num_pages:
                timeline.holds(num_pages, now)
            if timeline.first_token_at is None:
                timeline.cached_tokens = chunk.sequence.cached_tokens

    def ended(self, sequence: Sequence) -> None:
        """See `Observer`."""
        now = time.monotonic()
        if sequence.meter is not None:
            sequence.meter.ended(sequence, now)
        if sequence.timeline is not None:
            sequence.timeline.passed_over_until(now)
            sequence.timeline.ended_at = now

    # ---- from the scheduler

    def completed(self, number: int, chunks: list[PlannedChunk], times: StepTimes) -> None:
        """A step is through; `chunks` are all of it, those of sequences that have ended meanwhile included."""
        planned_at = self._planned_at[number]
        num_tokens = sum([chunk.num_tokens for chunk in chunks])
        busy_seconds = self._through(number, chunks, num_tokens, times, error=None)
        if self.num_failures_in_a_row:
            self.num_failures_in_a_row = 0
            self.failed_in_a_row.clear()
        self.longest_step_seconds = max(self.longest_step_seconds, busy_seconds)
        self.step_costs.observe(_load(chunks), busy_seconds)
        seconds = busy_seconds / num_tokens
        for chunk in chunks:
            timeline = chunk.sequence.timeline
            if timeline is None:
                continue
            if chunk.num_tokens == 1 and timeline.first_token_at is not None:  # nearly all of them
                timeline.step_seconds += seconds
                continue
            timeline.step_seconds += seconds * chunk.num_tokens
            if not chunk.drafts:
                timeline.computed(PrefillChunk(number, planned_at, times.ended_at, chunk.start, chunk.num_tokens))

    def failed(self, number: int, chunks: list[PlannedChunk], times: StepTimes, error: Exception) -> None:
        """A step is through and gave nothing; it took its time all the same."""
        num_tokens = sum([chunk.num_tokens for chunk in chunks])
        seconds = self._through(number, chunks, num_tokens, times, error) / num_tokens
        self.num_failures_in_a_row += 1
        self.failed_in_a_row.update(chunk.sequence.request_id for chunk in chunks)
        now = time.monotonic()
        if self._recorded.recorders:
            self._recorded.failed(number, chunks)
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.meter is not None:
                sequence.meter.lost(chunk, now)
            if sequence.timeline is not None:
                sequence.timeline.step_seconds += seconds * chunk.num_tokens

    def _through(
        self, number: int, chunks: list[PlannedChunk], num_tokens: int, times: StepTimes, error: Exception | None
    ) -> float:
        """Count a step, and tell of it; returns its seconds. What overlaps the step before has been counted there."""
        busy_seconds = times.ended_at - max(times.started_at, self.last_ended_at)
        self.last_ended_at = times.ended_at
        self.num_steps += 1
        self._telemetry.step_seconds += busy_seconds
        self._telemetry.step_ended(
            StepRecord(
                number=number,
                planned_at=self._planned_at.pop(number),
                started_at=times.started_at,
                submitted_at=times.submitted_at,
                masked_at=times.masked_at,
                ended_at=times.ended_at,
                busy_seconds=busy_seconds,
                num_chunks=len(chunks),
                num_tokens=num_tokens,
                error=None if error is None else type(error).__name__,
            ),
            chunks,
        )
        return busy_seconds

    def drew(self, number: int, progresses: list[Progress]) -> None:
        """The results of step `number` have been applied."""
        now = time.monotonic()
        _pay(progresses, now)
        gap, num_gaps = 0.0, 0  # most tokens of a step follow those of the same step before
        counters = self._telemetry.counters
        observe = counters.inter_token_seconds.observe
        for progress in progresses:
            timeline = progress.sequence.timeline
            if timeline is None:
                continue
            num_tokens = len(progress.token_ids)
            if progress.num_drafts or progress.finish_reason is not None:
                self._note(progress, timeline, now)
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

    def _note(self, progress: Progress, timeline: ChoiceTimeline, now: float) -> None:
        """What few results have: guesses, and an end."""
        if progress.num_drafts:
            self._telemetry.counters.accepted_drafts[progress.num_accepted] += 1
        if progress.finish_reason is not None:
            timeline.finish_reason = progress.finish_reason
            timeline.ended_at = now  # the planner ended it a little earlier, before its last token counted


def _pay(progresses: list[Progress], now: float) -> None:
    """Drawn tokens draw on the quotas of those who have one."""
    for progress in progresses:
        if progress.sequence.meter is not None and progress.token_ids:
            progress.sequence.meter.drew(progress.sequence, len(progress.token_ids), now)


def _load(chunks: list[PlannedChunk]) -> StepLoad:
    """What a step with these had to do."""
    decodes = [chunk.start for chunk in chunks if chunk.num_tokens == 1]
    if len(decodes) == len(chunks):
        return StepLoad(len(decodes), 0, sum(decodes))
    prompts = [chunk for chunk in chunks if chunk.num_tokens != 1]
    return StepLoad(
        num_decodes=len(decodes),
        num_prompt_tokens=sum([chunk.num_tokens for chunk in prompts]),
        decode_context=sum(decodes),
        prompt_context=sum([context_of(chunk.start, chunk.num_tokens) for chunk in prompts]),
    )
