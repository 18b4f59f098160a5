"""Runs steps by a script. Pages hold token ids instead of keys and values, so that any mix-up of pages shows."""

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from limelight.generation import Pooling
from limelight.step import (
    Capacity,
    Chunk,
    Readout,
    Sampled,
    SampledLogprobs,
    SeatSampling,
    SeatTaken,
    Step,
    StepResult,
    TokenMasks,
)
from limelight.testing.adapters import ScriptedAdapters
from limelight.testing.script import Script, Seat, Turn, TurnFailure, as_function
from limelight.testing.vocabulary import VOCAB_SIZE

HIDDEN_SIZE = 8
MASK_BYTES = 36
"""A bit per token, in whole words of four bytes."""


@dataclass(slots=True)
class _Undrawn:
    """A step that waits for masks, or did."""

    step: Step
    result: StepResult | None = None

    def read(self) -> StepResult:
        assert self.result is not None, "nobody waits for a step whose masks have not come"
        return self.result


class ScriptedExecutor:
    """A `StepExecutor` whose pages hold token ids instead of keys and values, so that any mix-up of pages shows.

    Args:
        before_step: called with each step on the submit thread; may block, or raise to fail the step.
    """

    def __init__(
        self, script: Script, capacity: Capacity, before_step: Callable[[Step], None] | None, step_seconds: float
    ) -> None:
        self._script = as_function(script)
        self._capacity = capacity
        self._before_step = before_step
        self._step_seconds = step_seconds
        self._seats: dict[int, Seat] = {}
        self._slots: dict[int, tuple[int | None, int]] = {}
        self.adapters = ScriptedAdapters()
        self._undrawn: _Undrawn | None = None
        self._closed = threading.Event()

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """Run the step at once."""
        for seat in step.released:
            del self._seats[seat]
        for taken in step.taken:
            self._take(taken)
        for chunk in step.chunks:
            self._seats[chunk.seat].pages.extend(chunk.new_pages)
        if self._before_step is not None:
            self._before_step(step)
        if self._step_seconds:
            self._closed.wait(self._step_seconds)
        for chunk in step.chunks:
            self._write(chunk)
        if any(chunk.masked for chunk in step.chunks):
            self._undrawn = undrawn = _Undrawn(step)
            return undrawn.read
        result = tuple(self._result(chunk) for chunk in step.chunks)
        return lambda: result

    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        """Draw the tokens of the last step: what a mask does not allow becomes the first token that it does."""
        undrawn, self._undrawn = self._undrawn, None
        assert undrawn is not None, "a step with masked chunks came before"
        assert undrawn.step.number == step_number, "masks are those of the last step"
        undrawn.result = tuple(
            self._result(chunk, masks.get(number)) for number, chunk in enumerate(undrawn.step.chunks)
        )

    def close(self) -> None:
        """End a delay in progress."""
        self._closed.set()

    def _take(self, taken: SeatTaken) -> None:
        assert taken.seat not in self._seats, "a seat is taken after its release"
        assert taken.adapter is None or taken.adapter in self.adapters.loaded, "the adapter is loaded"
        self._seats[taken.seat] = Seat(taken.sampling, taken.num_prompt_tokens, taken.adapter)

    def _write(self, chunk: Chunk) -> None:
        seat = self._seats[chunk.seat]
        token_ids = chunk.token_ids
        if token_ids is None:
            assert seat.last_token is not None, "a decode chunk follows a drawn token"
            token_ids = (seat.last_token,)
        assert len(token_ids) == chunk.num_tokens
        for offset, token_id in enumerate(token_ids):
            self._slots[self._slot(seat, chunk.start + offset)] = (seat.adapter, token_id)

    def _result(self, chunk: Chunk, mask: bytes | None = None) -> Sampled | None:
        drawn = self._sample(chunk, mask) if chunk.sample else None
        if chunk.readout is None:
            return drawn
        scores, hidden = self._read_out(chunk, chunk.readout)
        return msgspec.structs.replace(drawn or Sampled(()), scores=scores, hidden=hidden)

    def _read_out(self, chunk: Chunk, readout: Readout) -> tuple[tuple[SampledLogprobs, ...], bytes]:
        """A token's score tells the token and the one before; a hidden state tells its token."""
        seat, first = self._seats[chunk.seat], chunk.start + readout.first_row
        before = self._read(seat, first, first + len(readout.next_token_ids))
        scores = [
            _logprobs(scripted_logprob(last, token_id), token_id, readout.num_logprobs, rank=1)
            for last, token_id in zip(before, readout.next_token_ids, strict=True)
        ]
        if readout.pooling is None:
            return tuple(scores), b""
        end = chunk.start + chunk.num_tokens
        token_ids = self._read(seat, end - 1 if readout.pooling is Pooling.LAST else first, end)
        hidden = [0.0] * HIDDEN_SIZE
        for token_id in token_ids:
            hidden[token_id % HIDDEN_SIZE] += 1.0
        return tuple(scores), struct.pack(f"<{HIDDEN_SIZE}f", *hidden)

    def _sample(self, chunk: Chunk, mask: bytes | None = None) -> Sampled:
        """One token, and more while they agree with the chunk's guesses."""
        end = chunk.start + chunk.num_tokens
        guesses = chunk.token_ids[-chunk.num_drafts :] if chunk.num_drafts and chunk.token_ids else ()
        drawn = [self._draw(chunk.seat, end - len(guesses), mask, 0)]
        for number, guess in enumerate(guesses, start=1):
            if drawn[-1].token_ids != (guess,):
                break
            drawn.append(self._draw(chunk.seat, end - len(guesses) + number, mask, number))
        if drawn[-1].failure is not None:
            return drawn[-1]
        logprobs = [entry for sampled in drawn for entry in sampled.logprobs or ()]
        return Sampled(tuple(sampled.token_ids[0] for sampled in drawn), tuple(logprobs) or None)

    def _draw(self, seat_number: int, position: int, mask: bytes | None, row: int) -> Sampled:
        seat = self._seats[seat_number]
        forced = self._forced(seat.sampling)
        try:
            token_id = self._script(Turn(seat, position, self._read)) if forced is None else forced
        except TurnFailure as failure:
            return Sampled((), failure=str(failure))
        blocked = seat.sampling.blocked_token_ids if position < seat.sampling.blocked_below_position else ()
        if token_id in blocked:
            token_id = ord("_")
        if mask is not None:
            allowed = [allowed_id for allowed_id in _allowed(mask, row) if allowed_id not in blocked]
            if not allowed:
                return Sampled((), failure="the mask allows no token that may be drawn")
            if token_id not in allowed:
                token_id = allowed[0]
        seat.last_token = token_id
        num_logprobs = seat.sampling.num_logprobs
        if num_logprobs is None:
            return Sampled((token_id,))
        logprobs = _logprobs(-0.25, token_id, num_logprobs)
        asked = tuple(-0.5 - asked_id / VOCAB_SIZE for asked_id in seat.sampling.logprob_token_ids)
        return Sampled((token_id,), (msgspec.structs.replace(logprobs, asked=asked),))

    def _forced(self, sampling: SeatSampling) -> int | None:
        bias = sampling.logit_bias or {}
        return next((token_id for token_id, value in bias.items() if value >= 100), None)

    def _slot(self, seat: Seat, position: int) -> int:
        page_size = self._capacity.page_size
        return seat.pages[position // page_size] * page_size + position % page_size

    def _read(self, seat: Seat, start: int, end: int) -> list[int]:
        slots = [self._slots[self._slot(seat, position)] for position in range(start, end)]
        assert all(adapter == seat.adapter for adapter, _ in slots), "a page belongs to one adapter"
        return [token_id for _, token_id in slots]


def scripted_logprob(last: int, token_id: int) -> float:
    """The score of a prompt's token behind `last`."""
    return -0.25 - (last * 7 + token_id) % 64 / 64


def _logprobs(logprob: float, token_id: int, num_best: int, rank: int | None = None) -> SampledLogprobs:
    best = tuple((token_id + place) % VOCAB_SIZE for place in range(num_best))
    return SampledLogprobs(logprob, best, tuple(logprob - place for place in range(num_best)), rank=rank)


def _allowed(mask: bytes, row: int) -> Sequence[int]:
    """Tokens that row number `row` of a masked chunk may draw."""
    bits = int.from_bytes(mask[row * MASK_BYTES : (row + 1) * MASK_BYTES], "little")
    return [token_id for token_id in range(VOCAB_SIZE) if bits >> token_id & 1]
