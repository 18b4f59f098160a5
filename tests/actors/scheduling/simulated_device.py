"""A device that simulates KV memory instead of a model, and a solo oracle with the same sampler.

Each slot remembers its position and the whole token history up to it. A chunk whose context is not exactly one coherent
history, position by position, draws and writes `POISON`, as real attention over wrong pages would give wrong text.
A failed step leaves poison in every slot and seat that it touched.
"""

import dataclasses
from collections.abc import Sequence as Tokens
from typing import Any, NamedTuple

import msgspec

from limelight.generation import FinishReason, Pooling
from limelight.step import Capacity, Chunk, Sampled, SampledLogprobs, SeatSampling, Step, StepResult

POISON = -1
EMPTY_HISTORY = 0


class Slot(NamedTuple):
    position: int
    token: int
    history: int


@dataclasses.dataclass
class Seat:
    sampling: SeatSampling
    prompt_counts: int
    output_counts: int
    pages: list[int] = dataclasses.field(default_factory=list)
    last_token: int | None = None
    has_guessed: bool = False


def extend(history: int, token: int) -> int:
    return hash((history, token))


def counts(tokens: Tokens[int]) -> int:
    """Changes with the multiset of tokens, not with their order."""
    return sum(hash((token, 1)) for token in tokens)


def draw(
    history: int, sampling: SeatSampling, position: int, prompt_counts: int, output_counts: int, vocab_size: int
) -> tuple[int, float]:
    """The token at `position` and its log-probability: a function of what a real sampler may depend on."""
    penalties = (prompt_counts, output_counts) if sampling.has_penalties else (0, 0)
    value = hash((history, sampling.seed, position, *penalties))
    token = value % vocab_size
    while position < sampling.blocked_below_position and token in sampling.blocked_token_ids:
        token = (token + 1) % vocab_size
    return token, -(value // vocab_size % 1000) / 100


def scored(history: int, token_id: int) -> SampledLogprobs:
    """Of a prompt's token behind a history."""
    return SampledLogprobs(-(hash((history, token_id)) % 1000) / 100, (), (), rank=1)


def pooled(histories: Tokens[int], pooling: Pooling) -> bytes:
    """Of rows that end histories: a sum that parts of a prompt can share."""
    value = histories[-1] if pooling is Pooling.LAST else sum(histories)
    return (value % 2**64).to_bytes(8)


class SimulatedDevice:
    """Runs steps in the order given. Also asserts the protocol of steps: seats, page tables, one chunk per seat."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.slots: list[Slot | None] = [None] * (capacity.num_pages * capacity.page_size)
        self.seats: dict[int, Seat] = {}
        self.occupied: set[int] = set()
        self.next_number = 0
        self.num_computed_tokens = 0

    def run(self, step: Step, *, fails: bool = False) -> StepResult:
        """Result of the step; meaningless if it `fails`."""
        self._check_protocol(step)
        for taken in step.taken:
            self.seats[taken.seat] = Seat(
                taken.sampling, counts(taken.prompt_token_ids), counts(taken.output_token_ids)
            )
        written = [self._write(chunk) for chunk in step.chunks]
        slots = [slot for chunk_slots in written for slot in chunk_slots]
        assert len(set(slots)) == len(slots), "two chunks of a step write to the same slot"
        result = tuple(self._result(chunk) for chunk in step.chunks)
        if fails:
            for slot in slots:
                self.slots[slot] = None
            for chunk in step.chunks:
                self.seats[chunk.seat].last_token = POISON
        return result

    def _check_protocol(self, step: Step) -> None:
        assert step.number == self.next_number
        self.next_number += 1
        assert step.chunks
        assert len({chunk.seat for chunk in step.chunks}) == len(step.chunks)
        num_tokens = sum(chunk.num_tokens for chunk in step.chunks)
        self.num_computed_tokens += num_tokens
        assert num_tokens <= self.capacity.max_num_batched_tokens
        assert self.occupied.issuperset(step.released), "a seat is released that nobody has"
        assert len(set(step.released)) == len(step.released)
        self.occupied.difference_update(step.released)
        for taken in step.taken:
            assert 0 <= taken.seat < self.capacity.num_seats
            assert taken.seat not in self.occupied, "a seat is taken before it is released"
            assert bool(taken.prompt_token_ids) == taken.sampling.has_penalties
            self.occupied.add(taken.seat)
        assert self.occupied.issuperset(chunk.seat for chunk in step.chunks)

    def _write(self, chunk: Chunk) -> list[int]:
        """Write the chunk's slots; a chunk finds what chunks before it in the same step wrote."""
        seat = self.seats[chunk.seat]
        seat.pages += chunk.new_pages
        end = chunk.start + chunk.num_tokens
        assert end < self.capacity.max_model_len + (not chunk.sample)
        num_needed = -(-end // self.capacity.page_size)
        assert len(seat.pages) >= num_needed, "the page table does not cover the chunk"
        seat.has_guessed |= bool(chunk.num_drafts)
        assert len(seat.pages) == num_needed or seat.has_guessed, "a seat without guesses has spare pages"
        assert len(set(seat.pages)) == len(seat.pages)
        tokens: tuple[int, ...]
        if chunk.token_ids is None:
            assert chunk.num_tokens == 1
            assert seat.last_token is not None, "the seat has not drawn the token that it should read"
            tokens = (seat.last_token,)
        else:
            assert len(chunk.token_ids) == chunk.num_tokens
            tokens = chunk.token_ids
        history = self._history(seat, chunk.start)
        slots = []
        for position, token in enumerate(tokens, chunk.start):
            assert token == POISON or 0 <= token < self.capacity.vocab_size
            history = POISON if POISON in (history, token) else extend(history, token)
            slots.append(self._slot(seat, position))
            self.slots[slots[-1]] = None if history == POISON else Slot(position, token, history)
        return slots

    def _history(self, seat: Seat, length: int) -> int:
        """History of the first `length` slots of a seat, POISON unless every one of them is right."""
        history = EMPTY_HISTORY
        for position in range(length):
            slot = self.slots[self._slot(seat, position)]
            if slot is None or slot.position != position or slot.history != extend(history, slot.token):
                return POISON
            history = slot.history
        return history

    def _result(self, chunk: Chunk) -> Sampled | None:
        drawn = self._sample(chunk)
        if chunk.readout is None:
            return drawn
        readout, seat, first = chunk.readout, self.seats[chunk.seat], chunk.start + chunk.readout.first_row
        assert not chunk.num_drafts, "a chunk with a readout has no guesses"
        assert readout.first_row + len(readout.next_token_ids) <= chunk.num_tokens
        scores = [
            scored(self._history(seat, row + 1), token_id) for row, token_id in enumerate(readout.next_token_ids, first)
        ]
        hidden = b""
        if readout.pooling is not None:
            rows = range(first, chunk.start + chunk.num_tokens)
            hidden = pooled([self._history(seat, row + 1) for row in rows], readout.pooling)
        return msgspec.structs.replace(drawn or Sampled(()), scores=tuple(scores), hidden=hidden)

    def _sample(self, chunk: Chunk) -> Sampled | None:
        if not chunk.sample:
            assert not chunk.num_drafts, "guesses belong to a chunk that samples"
            return None
        seat = self.seats[chunk.seat]
        end = chunk.start + chunk.num_tokens
        guesses = chunk.token_ids[-chunk.num_drafts :] if chunk.num_drafts else ()
        assert not guesses or not seat.sampling.has_penalties, "a guess would count as an output"
        drawn = [self._draw(seat, end - len(guesses))]
        for number, guess in enumerate(guesses, start=1):
            if drawn[-1][0] != guess:
                break
            drawn.append(self._draw(seat, end - len(guesses) + number))
        tokens = tuple(token for token, _ in drawn)
        if POISON in tokens or seat.sampling.num_logprobs is None:
            return Sampled(tokens)
        return Sampled(tokens, tuple(SampledLogprobs(logprob, (), ()) for _, logprob in drawn))

    def _draw(self, seat: Seat, position: int) -> tuple[int, float]:
        """The token at `position`, which the seat remembers."""
        history = self._history(seat, position)
        if history == POISON:
            seat.last_token = POISON
            return POISON, 0.0
        seat.last_token, logprob = draw(
            history, seat.sampling, position, seat.prompt_counts, seat.output_counts, self.capacity.vocab_size
        )
        seat.output_counts += counts([seat.last_token])
        return seat.last_token, logprob

    def _slot(self, seat: Seat, position: int) -> int:
        page_size = self.capacity.page_size
        return seat.pages[position // page_size] * page_size + position % page_size


@dataclasses.dataclass
class Expected:
    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    stop_token_id: int | None
    finish_details: str | None
    scores: tuple[SampledLogprobs, ...] | None = None
    hidden: int | None = None


def solo_readout(prompt: Tokens[int], *, scores: bool, pooling: Pooling | None) -> dict[str, Any]:
    """What is told of a prompt beside what is drawn: `scores` and `hidden` of `Expected`."""
    histories = [EMPTY_HISTORY]
    for token in prompt:
        histories.append(extend(histories[-1], token))
    found = tuple(scored(histories[row], prompt[row]) for row in range(1, len(prompt)))
    hidden = None if pooling is None else int.from_bytes(pooled(histories[1:], pooling))
    return {"scores": found if scores else None, "hidden": hidden}


def solo_run(
    prompt: Tokens[int],
    sampling: SeatSampling,
    stop_token_ids: frozenset[int],
    max_tokens: int | None,
    capacity: Capacity,
) -> Expected:
    """What a sequence must give, whatever else runs: written from the rules, without pages, seats or steps."""
    history = EMPTY_HISTORY
    for token in prompt:
        history = extend(history, token)
    num_slots = capacity.num_pages * capacity.page_size
    expected = Expected([], [], FinishReason.LENGTH, None, None)
    while True:
        num_tokens = len(prompt) + len(expected.tokens)
        if num_tokens == capacity.max_model_len or len(expected.tokens) == max_tokens:
            return expected
        if num_tokens > num_slots:
            expected.finish_details = "kv_cache_full"
            return expected
        token, logprob = draw(
            history, sampling, num_tokens, counts(prompt), counts(expected.tokens), capacity.vocab_size
        )
        history = extend(history, token)
        expected.tokens.append(token)
        expected.logprobs.append(logprob)
        if token in stop_token_ids:
            expected.finish_reason = FinishReason.STOP
            expected.stop_token_id = token
            return expected
