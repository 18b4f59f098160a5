"""Decides the next step: the one object through which the scheduler actor sees scheduling.

Pure bookkeeping: no asyncio, no torch, no clock. Everything happens inside the calls, and the same calls give the same
steps. `batch.py` holds the rules by which a step is filled.

Steps run on the device in the order of planning, which makes all of this safe while steps are in flight: a sequence
that is cancelled, finished or preempted gives seat and pages up at once, since only later steps can use them; its
result for a step in flight is dropped as stale if the sequence has ended, and counts if it was only preempted.
"""

import msgspec

from limelight.actors.scheduling.batch import Batch
from limelight.actors.scheduling.fair_queue import FairQueue
from limelight.actors.scheduling.forecast import AnswerLengths, Forecast, Outlook
from limelight.actors.scheduling.in_flight import InFlightStep, PlannedChunk, spoiled_by
from limelight.actors.scheduling.length_limits import set_limits
from limelight.actors.scheduling.observer import Observer, Unobserved
from limelight.actors.scheduling.prompt_lookup import PromptLookup, Speculation
from limelight.actors.scheduling.prompt_progress import PromptProgress, QueuePositions, prompt_progress
from limelight.actors.scheduling.residents import Residents
from limelight.actors.scheduling.sequence import Rank, Sequence
from limelight.actors.scheduling.shares import Account
from limelight.actors.scheduling.step_costs import StepCosts, StepLoad
from limelight.actors.scheduling.turns import Turns
from limelight.errors import InvalidRequest
from limelight.generation import FinishReason
from limelight.step import Capacity, Sampled, SampledLogprobs, Step, StepResult


class Progress(msgspec.Struct, frozen=True):
    """Tokens drawn for a sequence by one step; the last one of a sequence has a `finish_reason`.

    Attributes:
        logprobs: one entry per token, or None.
        stop_token_id: the stop token that ended it; it is the last of `token_ids`.
        finish_details: "kv_cache_full", or None.
        num_drafts, num_accepted: tokens guessed for the step, and those of them that are among `token_ids`.
        failure: why the sequence is lost instead; it has ended, without a `finish_reason`.
        scores, hidden: what the sequence's `readout` asked for, with the first tokens or the end; None: nothing.
    """

    sequence: Sequence
    token_ids: tuple[int, ...]
    logprobs: tuple[SampledLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    finish_details: str | None = None
    num_drafts: int = 0
    num_accepted: int = 0
    failure: str | None = None
    scores: tuple[SampledLogprobs, ...] | None = None
    hidden: tuple[bytes, ...] | None = None


class Planner:
    """Sequences in, steps out, results in, progress out.

    Args:
        prefix_caching: share pages of equal prefixes.
        pipeline_depth: steps in flight at most, 1 or 2.
        speculation: guess tokens of sequences without penalties (whose counts a guess would change) and without a
            constraint; None: do not.
        observer: told of every decision.
        step_costs: what forecasts are made from; whoever sees steps end tells it.
        target_step_seconds: a step with decodes gets as many prompt tokens as can be expected to fit into this time,
            and one page at least; None: as many as its budget has.

    Attributes:
        num_preemptions: sequences preempted so far.
        prefix_queries_tokens: prompt tokens of all sequences that have run.
        prefix_hits_tokens: those of them that came from the prefix cache.
        num_draft_tokens, num_accepted_tokens: tokens guessed, and those that turned out right.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        prefix_caching: bool,
        pipeline_depth: int,
        speculation: Speculation | None = None,
        observer: Observer | None = None,
        step_costs: StepCosts | None = None,
        target_step_seconds: float | None = None,
    ) -> None:
        assert pipeline_depth in (1, 2), "finding what a failed step spoils relies on it"
        self._capacity = capacity
        self._pipeline_depth = pipeline_depth
        self._speculation = speculation
        self._observer = observer or Unobserved()
        self._residents = Residents(capacity, self._observer, prefix_caching=prefix_caching)
        self._waiting = FairQueue()
        self._positions = QueuePositions()
        self._live: dict[str, dict[int, Sequence]] = {}
        self._in_flight: dict[int, InFlightStep] = {}
        self._num_added = 0
        self._num_planned = 0
        self._answer_lengths = AnswerLengths()
        self._step_costs = step_costs or StepCosts()
        self._target_step_seconds = target_step_seconds
        self._forecast = Forecast(capacity, self._step_costs, self._answer_lengths)
        self.num_preemptions = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait to be run.

        Raises:
            ContextLengthExceeded: not even one token could be drawn, in the context or in the whole KV pool.
            InvalidRequest: the prompt is empty, or a live sequence has the same request id and index.
        """
        set_limits(sequence, self._capacity)
        choices = self._live.setdefault(sequence.request_id, {})
        if sequence.index in choices:
            raise InvalidRequest(f"choice {sequence.index} of request {sequence.request_id} exists already")
        if self._speculation is not None and not sequence.sampling.has_penalties and sequence.constraint is None:
            sequence.lookup = PromptLookup(self._speculation)
        sequence.rank = self._next_rank(sequence)
        sequence.num_added_at = self._num_planned
        self._num_added += 1
        choices[sequence.index] = sequence
        self._waiting.push(sequence)

    def outlook(self, choices: list[Sequence]) -> Outlook:
        """What lies ahead of the choices of a request, which have not been added, if they are added now."""
        sequence, *others = choices
        sequence.rank = self._next_rank(sequence)
        num_cached_tokens = len(self._residents.cached_pages(sequence)) * self._capacity.page_size
        sequence.num_expected_tokens -= num_cached_tokens
        for other in others:
            other.num_expected_tokens = 1
        return self._forecast.of(
            sequence,
            self._residents.running,
            self._waiting.sequences(),
            self._residents.num_free_seats,
            self._residents.pool.num_free,
            self._turns(),
        )

    def seconds_until_free(self, owner: str | None = None) -> float:
        """Until one of the running sequences may be expected to end; 0: nothing runs, or nothing is known.

        Args:
            owner: look at those of this one, if it has any; None: at all.
        """
        running = self._residents.running
        own = [sequence for sequence in running if sequence.owner == owner]
        return self._forecast.seconds_until_free(own or running, beside=running)

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """Forget a request, or one choice of it; unknown ones are ignored. Pages and seats are free at once."""
        for sequence in self.sequences(request_id):
            if index is None or sequence.index == index:
                self._end(sequence)

    def sequences(self, request_id: str) -> list[Sequence]:
        """Those of a request that are live; none of an unknown one."""
        return list(self._live.get(request_id, {}).values())

    def plan(self) -> Step | None:
        """The next step, which must then be run; None if the pipeline is full or nothing can run now.

        If sequences are live and no step is in flight, there is always one.
        """
        if len(self._in_flight) >= self._pipeline_depth or not self._live:
            return None
        self._waiting.age(self._num_planned)
        number = self._num_planned
        batch = Batch(number, self._budget(), self._capacity.page_size, self._residents, self._waiting)
        batch.make_way()
        batch.serve_running()
        batch.admit_waiting()
        batch.spend_rest()
        batch.guess()
        self.num_preemptions += batch.num_preempted
        for sequence in batch.passed_over:
            if sequence.seat is None:  # it may have sat down after all
                self._observer.passed_over(sequence)
        step = batch.to_step()
        if step is None:
            return None
        self._num_planned += 1
        shares = self._waiting.shares
        self._in_flight[number] = InFlightStep(number, batch.chunks, charged=shares.is_contested)
        if shares.is_contested:
            shares.charge(batch.chunks)
        self._count_admitted(batch)
        self._observer.planned(number, batch.chunks)
        return step

    def complete(self, number: int, result: StepResult) -> list[Progress]:
        """Apply the result of the oldest step in flight; stale parts of it are dropped.

        Raises:
            ValueError: `number` is not the oldest step in flight, or the result doesn't fit its chunks.
        """
        if number != next(iter(self._in_flight), None):
            raise ValueError(f"step {number} is complete, but the steps in flight are {list(self._in_flight)}")
        chunks = self._in_flight[number].chunks
        if [chunk.sample or chunk.reports for chunk in chunks] != [sampled is not None for sampled in result]:
            raise ValueError(
                f"the result of step {number} has not one entry per chunk, None where it neither samples nor reports"
            )
        del self._in_flight[number]
        progress = []
        for chunk, sampled in zip(chunks, result, strict=True):
            if sampled is not None and chunk.epoch == chunk.sequence.epoch:
                entry = None
                if chunk.reports:
                    entry = self._take_report(chunk, sampled)
                elif not chunk.drafts:
                    entry = self._apply_plain(chunk.sequence, sampled)
                if entry is None and chunk.sample:
                    entry = self._apply(chunk, sampled)
                if entry is not None and (entry.token_ids or entry.finish_reason or entry.failure is not None):
                    progress.append(entry)
        return progress

    def constrained(self, number: int) -> list[tuple[int, Sequence]]:
        """The chunks of step `number` that wait for a mask, by their numbers in the step, with their sequences.

        To be asked when all steps before it have been applied: then all their tokens are known. Sequences that have
        ended, or start again, are left out, and so is everybody if the step has failed.
        """
        step = self._in_flight.get(number)
        return [
            (index, chunk.sequence)
            for index, chunk in enumerate(step.chunks if step is not None else ())
            if chunk.sample and chunk.sequence.constraint is not None and not chunk.stale
        ]

    def chunks(self, number: int) -> list[PlannedChunk]:
        """Those of a step in flight."""
        return self._in_flight[number].chunks

    def is_next(self, number: int) -> bool:
        """Whether all steps before step `number` have been applied."""
        return next(iter(self._in_flight), number) >= number

    def fail(self, number: int) -> list[Sequence]:
        """Step `number` has failed: the sequences that it carried are lost.

        Pages that it wrote leave the prefix cache, with what later steps in flight computed from them; other sequences
        that use such pages start again from their known tokens. A preempted sequence is lost, too, if the failed step
        carried it.

        Returns:
            the lost sequences, which have ended.

        Raises:
            ValueError: no such step is in flight.
        """
        failed = self._in_flight.pop(number, None)
        if failed is None:
            raise ValueError(f"step {number} has failed, but the steps in flight are {list(self._in_flight)}")
        if failed.charged:
            self._waiting.shares.give_back(failed.chunks)
        later = [step for step in self._in_flight.values() if step.number > number]
        pages = spoiled_by(failed, later, self._residents.pool, self._capacity.page_size)
        lost = [chunk.sequence for chunk in failed.chunks if not chunk.stale]
        for sequence in lost:
            self._end(sequence)
        for sequence in list(self._residents.running):
            if not pages.isdisjoint(sequence.pages):
                self._reset(sequence)
        for page in pages:
            self._residents.pool.withdraw(page)
        return lost

    def fail_all(self) -> list[Sequence]:
        """End everything, forget the steps in flight and distrust all pages; returns the sequences that were live."""
        lost = [sequence for choices in self._live.values() for sequence in choices.values()]
        for sequence in lost:
            self._end(sequence)
        self._in_flight.clear()
        for page in list(self._residents.cache):
            self._residents.pool.withdraw(page)
        return lost

    def prompt_progress(self, request_id: str) -> PromptProgress | None:
        """How far the prompt of a request is; None if it is not live."""
        choices = self._live.get(request_id)
        if not choices:
            return None
        version = (self._num_planned, self._num_added, len(self._waiting))
        positions = self._positions.of(lambda: self._turns().in_order(self._waiting.sequences()), version)
        return prompt_progress(choices.values(), self._in_flight.values(), positions)

    @property
    def num_running(self) -> int:
        """Sequences that have a seat."""
        return len(self._residents.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that have none, preempted ones included."""
        return len(self._waiting)

    @property
    def accounts(self) -> list[Account]:
        """Of the shares that have live sequences."""
        return list(self._waiting.shares.active.values())

    @property
    def num_free_pages(self) -> int:
        """Pages that no sequence holds, cached ones included."""
        return self._residents.pool.num_free

    @property
    def num_cached_pages(self) -> int:
        """Pages in the prefix cache, held or not."""
        return len(self._residents.cache)

    @property
    def num_free_seats(self) -> int:
        """Seats that nobody sits on."""
        return self._residents.num_free_seats

    @property
    def num_in_flight(self) -> int:
        """Steps planned and not answered."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether a sequence is live or a step in flight."""
        return bool(self._live or self._in_flight)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. Costs time in proportion to all tokens; for tests."""
        self._residents.check()
        running, waiting = self._residents.running, self._waiting.sequences()
        live = [sequence for choices in self._live.values() for sequence in choices.values()]
        assert len(live) == len(running) + len(waiting), "a sequence is lost or in two places"
        assert {*map(id, live)} == {*map(id, [*running, *waiting])}, "a sequence has ended but was not removed"
        assert all(self._live.values()), "an ended request is remembered"
        assert len(self._in_flight) <= self._pipeline_depth, "too many steps are in flight"
        for sequence in waiting:
            assert sequence.seat is None, "a waiting sequence sits"
            assert not sequence.pages, "a waiting sequence holds pages"
            assert not sequence.num_computed_tokens, "a waiting sequence has computed tokens"
        for sequence in live:
            assert sequence.num_pending_tokens == self._num_drawing(sequence), "pending tokens are miscounted"
            assert sequence.num_tokens + sequence.num_pending_tokens <= sequence.max_length, "planned beyond the end"

    def _turns(self) -> Turns:
        return Turns(self._waiting.shares, self._capacity.num_seats, self._answer_lengths.left)

    def _budget(self) -> int:
        """Tokens of the next step, at most."""
        budget = self._capacity.max_num_batched_tokens
        if self._target_step_seconds is None:
            return budget
        contexts, context = [], 0  # of decodes, and of the prompt that is furthest
        for sequence in self._residents.running:
            if sequence.num_wanted_tokens == 1:
                contexts.append(sequence.num_computed_tokens)
            elif sequence.num_wanted_tokens:
                context = max(context, sequence.num_computed_tokens)
        num_decodes = len(contexts)
        if not num_decodes:  # nobody waits for a next token
            return budget
        decodes = StepLoad(num_decodes, 0, sum(contexts))
        within = self._step_costs.prompt_tokens_within(self._target_step_seconds, decodes, context)
        return budget if within is None else min(budget, num_decodes + max(within, self._capacity.page_size))

    def _next_rank(self, sequence: Sequence) -> Rank:
        return (1, sequence.priority, self._num_added)

    def _num_drawing(self, sequence: Sequence) -> int:
        chunks = (chunk for step in self._in_flight.values() for chunk in step.chunks)
        return sum(chunk.sample and not chunk.stale for chunk in chunks if chunk.sequence is sequence)

    def _count_admitted(self, batch: Batch) -> None:
        for sequence in batch.admitted:
            if not sequence.was_scheduled:
                sequence.was_scheduled = True
                self.prefix_queries_tokens += sequence.num_prompt_tokens
                self.prefix_hits_tokens += sequence.cached_tokens

    def _apply_plain(self, sequence: Sequence, sampled: Sampled) -> Progress | None:
        """What `_apply` does for one token after which its sequence goes on, as nearly always. None: it isn't that."""
        token_ids = sampled.token_ids
        if len(token_ids) != 1 or token_ids[0] in sequence.stop_token_ids or sampled.failure is not None:
            return None
        known = sequence.token_ids
        if len(known) + 1 >= sequence.max_length or sequence.readout is not None:
            return None
        known.append(token_ids[0])
        sequence.num_pending_tokens -= 1
        if len(known) % self._capacity.page_size == 0 and sequence.seat is not None:
            self._residents.register(sequence)
        return Progress(sequence, token_ids, sampled.logprobs)

    def _take_report(self, chunk: PlannedChunk, sampled: Sampled) -> Progress | None:
        """Keep what the chunk says of its rows; the end of the sequence if it has failed, or draws nothing."""
        sequence, end = chunk.sequence, chunk.start + chunk.num_tokens
        if sampled.failure is not None:
            return self._lose(sequence, sampled.failure)
        assert sequence.readout is not None, "it is given away with the first tokens, which come after the prompt"
        sequence.readout.take(end, sampled)
        if sequence.draws or end < sequence.num_prompt_tokens:
            return None
        scores, hidden = _taken_readout(sequence)
        self._end(sequence)
        return Progress(sequence, (), finish_reason=FinishReason.LENGTH, scores=scores, hidden=hidden)

    def _apply(self, chunk: PlannedChunk, sampled: Sampled) -> Progress:
        """Append drawn tokens up to the first stop token or the length limit, and end the sequence there."""
        sequence = chunk.sequence
        sequence.num_pending_tokens -= 1
        if sampled.failure is not None:
            return self._lose(sequence, sampled.failure)
        stop_token_id: int | None = None
        num_kept = 0
        for token_id in sampled.token_ids[: sequence.max_length - sequence.num_tokens]:
            num_kept += 1
            if token_id in sequence.stop_token_ids:
                stop_token_id = token_id
                break
        sequence.token_ids.extend(sampled.token_ids[:num_kept])
        reason, details = None, None
        if stop_token_id is not None:
            reason = FinishReason.STOP
        elif sequence.num_tokens >= sequence.max_length:
            reason, details = FinishReason.LENGTH, sequence.limit_details
        num_accepted = min(num_kept, max(len(sampled.token_ids) - 1, 0)) if chunk.drafts else 0
        self.num_draft_tokens += len(chunk.drafts)
        self.num_accepted_tokens += num_accepted
        if chunk.drafts:  # what was computed for wrong guesses is computed again
            sequence.num_computed_tokens = min(sequence.num_computed_tokens, sequence.num_tokens - 1)
        if num_kept != 1 and not reason and (sequence.num_pending_tokens or not num_kept):
            self._reset(sequence)  # later steps, or the seat, assume exactly one token
        if sequence.seat is not None:
            self._residents.register(sequence)
        if reason:
            self._end(sequence)
        scores, hidden = _taken_readout(sequence) if num_kept else (None, None)
        return Progress(
            sequence=sequence,
            token_ids=sampled.token_ids[:num_kept],
            logprobs=None if sampled.logprobs is None else sampled.logprobs[:num_kept],
            finish_reason=reason,
            stop_token_id=stop_token_id,
            finish_details=details,
            num_drafts=len(chunk.drafts),
            num_accepted=num_accepted,
            scores=scores,
            hidden=hidden,
        )

    def _lose(self, sequence: Sequence, failure: str) -> Progress:
        """End a sequence whose own rows have failed; nobody shall find its pages. Who shares them already goes on."""
        for page in sequence.pages:
            self._residents.pool.withdraw(page)
        self._end(sequence)
        return Progress(sequence, (), failure=failure)

    def _reset(self, sequence: Sequence) -> None:
        """Start again from the known tokens; nothing in flight counts any more."""
        sequence.epoch += 1
        sequence.num_pending_tokens = 0
        if sequence.readout is not None:
            sequence.readout.forget_planned()
        if sequence.seat is not None:
            self._residents.unseat(sequence)
            self._waiting.push(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Forget a live sequence and free what it holds."""
        if sequence.draws and sequence.num_tokens > sequence.num_prompt_tokens:
            self._answer_lengths.add(sequence.num_tokens - sequence.num_prompt_tokens)
        self._observer.ended(sequence)
        sequence.epoch += 1
        sequence.num_pending_tokens = 0
        if sequence.seat is not None:
            self._residents.unseat(sequence)
        else:
            self._waiting.remove(sequence)
        self._waiting.shares.leave(sequence)
        choices = self._live[sequence.request_id]
        del choices[sequence.index]
        if not choices:
            del self._live[sequence.request_id]


def _taken_readout(sequence: Sequence) -> tuple[tuple[SampledLogprobs, ...] | None, tuple[bytes, ...] | None]:
    """Scores and hidden states of a prompt whose rows have all been reported; they are given away once."""
    readout, sequence.readout = sequence.readout, None
    if readout is None:
        return None, None
    scores = None if readout.num_logprobs is None else tuple(readout.scores)
    return scores, None if readout.pooling is None else tuple(readout.hidden)
