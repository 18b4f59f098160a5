"""What an engine counts: everything that cannot be read from its state."""

import time

from limelight.config import MAX_SPECULATIVE_TOKENS
from limelight.telemetry import buckets
from limelight.telemetry.instruments import OTHER, Counter, Histogram, HistogramFamily
from limelight.telemetry.share_totals import ShareTotals
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.timeline import Ending, RequestTimeline
from limelight.telemetry.timings import Timings
from limelight.telemetry.usage_totals import UsageTotals

STEP_PARTS = ("handover", "submit", "masks", "result", "report")
"""Of a step's time, in their order: until the runner's thread has it, until the executor has taken it, waiting for
masks beside the pass, until the result is there, until the event loop knows."""
NO_REASON = "none"
MAX_REQUEST_SERIES = 1000
"""Each model has a dozen, of endings and reasons."""


class EngineCounters:
    """Totals and histograms since the engine was made.

    Families have the label `model`: the served name, or that of an adapter that is or was loaded; a name that nobody
    has checked is never one. Times are in seconds. Histograms of a part of a request hold every request that reached
    the end of that part, however the request ended.

    Attributes:
        requests: ended requests, refused ones included, by model, ending and reason: the finish reason of a completed
            one's first choice, else the code of its error.
        request_seconds: from call to end, by model and ending; the only one with refused requests.
        first_token_seconds, queue_seconds, prefill_seconds, decode_seconds, tokenize_seconds: as in `Timings`.
        inference_seconds: from the first step that carries the request to its last token.
        token_seconds: mean time between two tokens of a request.
        inter_token_seconds: between two tokens of a choice, as the scheduler sees them; without labels.
        prompt_tokens, cached_tokens, computed_tokens, output_tokens, reasoning_tokens: of a request that has run;
            computed ones are those of the prompt that were not cached.
        longest_output_tokens: of the longest choice.
        choices, max_tokens: what requests asked for.
        preemptions: of a request.
        usage: totals by principal.
        shares: totals by share.
        step_seconds, step_part_seconds, step_tokens, step_batch_size: of steps, the second by part.
        num_stalls: tokens that came later than `stall_seconds`.
        num_stuck_steps, num_stuck_calls, num_loop_stalls: what the watchdogs have named: steps, calls on threads, and
            standstills of the event loop.
        accepted_drafts: how many guesses of a sequence's step were right -> how often that happened.
    """

    def __init__(self) -> None:
        self.requests = Counter(3, MAX_REQUEST_SERIES)
        self.request_seconds = HistogramFamily(buckets.REQUEST_SECONDS, 2)
        self.first_token_seconds = HistogramFamily(buckets.FIRST_TOKEN_SECONDS, 1)
        self.queue_seconds = HistogramFamily(buckets.PHASE_SECONDS, 1)
        self.prefill_seconds = HistogramFamily(buckets.PHASE_SECONDS, 1)
        self.decode_seconds = HistogramFamily(buckets.PHASE_SECONDS, 1)
        self.inference_seconds = HistogramFamily(buckets.PHASE_SECONDS, 1)
        self.tokenize_seconds = HistogramFamily(buckets.PHASE_SECONDS, 1)
        self.token_seconds = HistogramFamily(buckets.TOKEN_SECONDS, 1)
        self.inter_token_seconds = Histogram(buckets.TOKEN_SECONDS)
        self.prompt_tokens = HistogramFamily(buckets.TOKENS, 1)
        self.cached_tokens = HistogramFamily(buckets.TOKENS, 1)
        self.computed_tokens = HistogramFamily(buckets.TOKENS, 1)
        self.output_tokens = HistogramFamily(buckets.TOKENS, 1)
        self.longest_output_tokens = HistogramFamily(buckets.TOKENS, 1)
        self.reasoning_tokens = HistogramFamily(buckets.TOKENS, 1)
        self.choices = HistogramFamily(buckets.CHOICES, 1)
        self.max_tokens = HistogramFamily(buckets.TOKENS, 1)
        self.preemptions = HistogramFamily(buckets.PREEMPTIONS, 1)
        self.usage = UsageTotals()
        self.shares = ShareTotals()
        self.step_seconds = Histogram(buckets.STEP_SECONDS)
        self.step_part_seconds = HistogramFamily(buckets.STEP_SECONDS, 1)
        self._handover, self._submit, self._masks, self._result, self._report = map(
            self.step_part_seconds.of, STEP_PARTS
        )
        self.step_tokens = Histogram(buckets.STEP_TOKENS)
        self.step_batch_size = Histogram(buckets.BATCH_SIZES)
        self.num_stalls = 0
        self.num_stuck_steps = self.num_stuck_calls = self.num_loop_stalls = 0
        self.accepted_drafts = [0] * (MAX_SPECULATIVE_TOKENS + 1)
        self._models: set[str] = set()

    def request_admitted(self, timeline: RequestTimeline) -> None:
        """The engine has taken a request, so its model and adapter exist."""
        self._models.add(timeline.model)
        self.usage.admitted(timeline)
        self.shares.admitted(timeline)

    def model_label(self, timeline: RequestTimeline) -> str:
        """The served name, or that of an adapter that was there once; `OTHER` for a name that nobody has checked."""
        return timeline.model if timeline.adapter is None or timeline.model in self._models else OTHER

    def request_ended(self, timeline: RequestTimeline, known: Timings, model: str, trace_id: str | None) -> None:
        """A request has ended, or was refused.

        Args:
            known: its timings.
            model: its `model_label`.
            trace_id: hexadecimal, of a span that is recorded; None: there is none.
        """
        assert timeline.ending is not None, "it has ended"
        assert timeline.ended_at is not None, "it has ended"
        assert known.total is not None, "it has ended"
        self.requests.add(1, model, timeline.ending, _reason(timeline))
        self.shares.ended(timeline)
        at = timeline.unix_ns(timeline.ended_at) / 1e9
        self.request_seconds.of(model, timeline.ending).observe_traced(known.total, trace_id, at)
        if timeline.admitted_at is None:
            return
        self.usage.ended(timeline)
        self._observe_parts(known, model, trace_id, at)
        if timeline.scheduled_at is not None:
            self._observe_sizes(timeline, model)

    def step_ended(self, step: StepRecord) -> None:
        """A step is through."""
        self.usage.step_ended(step.planned_at)
        self.step_seconds.observe(step.busy_seconds)
        self.step_tokens.observe(step.num_tokens)
        self.step_batch_size.observe(step.num_chunks)
        self._handover.observe(step.started_at - step.planned_at)
        self._submit.observe(step.submitted_at - step.started_at)
        if step.masked_at != step.submitted_at:
            self._masks.observe(step.masked_at - step.submitted_at)
        self._result.observe(step.ended_at - step.masked_at)
        self._report.observe(time.monotonic() - step.ended_at)

    def _observe_parts(self, known: Timings, model: str, trace_id: str | None, at: float) -> None:
        parts = (
            (self.first_token_seconds, known.time_to_first_token),
            (self.queue_seconds, known.queue),
            (self.prefill_seconds, known.prefill),
            (self.decode_seconds, known.decode),
            (self.tokenize_seconds, known.tokenize),
            (self.token_seconds, known.per_token),
        )
        for family, seconds in parts:
            if seconds is not None:
                family.of(model).observe_traced(seconds, trace_id, at)
        if known.prefill is not None and known.decode is not None:
            self.inference_seconds.of(model).observe(known.prefill + known.decode)

    def _observe_sizes(self, timeline: RequestTimeline, model: str) -> None:
        self.prompt_tokens.of(model).observe(timeline.prompt_tokens)
        self.cached_tokens.of(model).observe(timeline.cached_tokens)
        self.computed_tokens.of(model).observe(timeline.prompt_tokens - timeline.cached_tokens)
        self.preemptions.of(model).observe(sum(choice.num_preemptions for choice in timeline.choices))
        if timeline.operation == "embeddings":
            return  # its outputs are no tokens
        self.output_tokens.of(model).observe(timeline.output_tokens)
        self.longest_output_tokens.of(model).observe(max(choice.num_tokens for choice in timeline.choices))
        self.reasoning_tokens.of(model).observe(timeline.reasoning_tokens)
        self.choices.of(model).observe(timeline.num_choices)
        if timeline.sampling.max_tokens is not None:
            self.max_tokens.of(model).observe(timeline.sampling.max_tokens)


def _reason(timeline: RequestTimeline) -> str:
    if timeline.ending is Ending.COMPLETED:
        if timeline.deadline is not None:
            return "deadline"
        return timeline.finish_reasons[0].value if timeline.finish_reasons else NO_REASON
    return (timeline.error.code if timeline.error is not None else None) or NO_REASON
