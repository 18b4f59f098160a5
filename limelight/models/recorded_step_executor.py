"""Runs steps on the CPU by replaying a forward pass that was recorded once: a step is a few numbers and one call.

Everything up to the drawn tokens happens inside the call, on the threads of a pool. No torch runs while steps do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from limelight.kernels.cpu.attention import KVPool
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.sampling import SampledBuffers, SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.cpu.threads import ThreadPool
from limelight.models.drawing import Report, not_finite, nothing_allowed, with_reports
from limelight.models.lora.recorded_adapters import RecordedAdapters
from limelight.models.recorded_pass import RecordableModel, RecordedPass, record_pass, record_readable_pass
from limelight.models.recorded_sampling import RecordedSamplingSeats
from limelight.models.recorded_seats import RecordedSeats
from limelight.models.token_masks import check_mask, mask_bytes
from limelight.step import Capacity, Chunk, Sampled, SampledLogprobs, SeatSampling, Step, StepResult, TokenMasks

if TYPE_CHECKING:
    from limelight.models.lora.adapter_file import AdapterWeights


def step_limits(capacity: Capacity, num_speculative_tokens: int) -> StepLimits:
    """The largest step that a scheduler with these settings makes."""
    return StepLimits(
        num_tokens=capacity.max_num_batched_tokens,
        num_seats=capacity.num_seats,
        num_sampled=most_sampled(capacity.max_num_batched_tokens, capacity.num_seats, num_speculative_tokens),
        max_pages=-(-capacity.max_model_len // capacity.page_size),
        page_size=capacity.page_size,
    )


def most_sampled(max_num_batched_tokens: int, num_seats: int, num_speculative_tokens: int) -> int:
    """The most rows of a step that draw a token: one of each sequence, and one for each of its guesses."""
    return min(max_num_batched_tokens, num_seats * (1 + num_speculative_tokens))


class RecordedStepExecutor:
    """See `StepExecutor`. Owns weights, KV pool, seats, the recorded passes and their threads.

    `submit` runs the step to its end, or to its logits where chunks are masked: `put_masks` then draws.

    Attributes:
        library: the compiled kernels.
        num_threads: that run a step.
    """

    def __init__(
        self,
        model: RecordableModel,
        kernels: CpuKernels,
        kv: KVPool,
        *,
        vocab_size: int,
        limits: StepLimits,
        num_threads: int,
        adapters: Mapping[int, AdapterWeights],
        max_adapters: int,
        max_adapter_rank: int,
    ) -> None:
        """Record the pass, and take over weights and pages.

        Args:
            adapters: the loaded ones by id, at most `max_adapters` of ranks up to `max_adapter_rank`; they may change
                between steps.

        Raises:
            MemoryError: memory or threads cannot be had.
        """
        self.library = kernels.library
        self.num_threads = num_threads
        self._vocab_size = vocab_size
        self._buffers = StepBuffers(limits)
        self._seats = RecordedSeats(self._buffers, vocab_size)
        self._sampling_buffers = sampling = SamplingBuffers(self._buffers, vocab_size)
        self._sampling = RecordedSamplingSeats(sampling)
        self._adapters = adapters
        self._recorded_adapters = RecordedAdapters(model.adaptable, kernels, limits, max_adapters, max_adapter_rank)
        self._record: Callable[..., RecordedPass] | None
        self._record = partial(record_pass, model, kernels, kv, self._buffers, sampling)
        self._plain: RecordedPass | None = self._record(None)
        self._adapted: RecordedPass | None = None  # recorded when the first adapter runs
        self._record_readable: Callable[..., RecordedPass] | None
        self._record_readable = partial(record_readable_pass, model, kernels, kv, self._buffers, sampling)
        self._readable: dict[bool, RecordedPass] = {}  # recorded when they run; the one with adapters under True
        self._pool = ThreadPool(kernels.library, num_threads)
        self._undrawn: _Undrawn | None = None

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """Apply the step's deltas, run it, and return a function that gives its result.

        Raises:
            ValueError: the step contradicts the seats.
            MemoryError: the threads' working memory cannot be had.
            RuntimeError: `close` has been called.
        """
        self._undrawn = None
        self._apply_deltas(step)
        if not step.chunks:
            return tuple
        drawing = [chunk for chunk in step.chunks if chunk.sample]
        wanted = [self._sampling.settings(chunk.seat) for chunk in drawing]
        recorded = self._prepare(step)
        if any(chunk.masked for chunk in drawing):
            recorded.program.run_first_part(self._pool)
            self._undrawn = undrawn = _Undrawn(step, recorded, drawing, wanted, self._read_rows(step, recorded))
            return undrawn.read
        recorded.program.run(self._pool)
        result = self._read(step, recorded.sampled, drawing, wanted, self._read_rows(step, recorded))
        return lambda: result

    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        """Draw the tokens of the last step.

        Raises:
            ValueError: a mask has the wrong size, or no such step waits for masks.
            MemoryError: the threads' working memory cannot be had.
        """
        undrawn, self._undrawn = self._undrawn, None
        if undrawn is None or undrawn.step.number != step_number:
            raise ValueError(f"step {step_number} does not wait for masks")
        try:
            self._write_masks(undrawn.step.chunks, masks)
            undrawn.recorded.program.run_second_part(self._pool)
        finally:
            self._sampling_buffers.allow_all()
        undrawn.result = self._read(
            undrawn.step, undrawn.recorded.sampled, undrawn.drawing, undrawn.wanted, undrawn.reports
        )

    def profile(self, step: Step) -> list[tuple[str, float]]:
        """Run a step, one operation after the other; name of each, and the seconds that it took. Nothing is drawn from
        the result: the seats keep their last tokens.

        Raises:
            ValueError, MemoryError, RuntimeError: as `submit`.
        """
        self._apply_deltas(step)
        return self._prepare(step).program.profile(self._pool)

    def close(self) -> None:
        """Let go of weights, pages and threads."""
        self._record = self._record_readable = self._plain = self._adapted = self._undrawn = None
        self._readable = {}
        self._adapters = {}
        self._pool.close()

    def _prepare(self, step: Step) -> RecordedPass:
        """Write the step into the buffers; the pass that runs it."""
        assert self._record is not None, "nothing runs after close()"
        assert self._plain is not None, "nothing runs after close()"
        adapters = self._seats.adapters
        recorded = self._plain
        adapted = any(adapters[chunk.seat] is not None for chunk in step.chunks)
        if adapted:
            self._recorded_adapters.fill(step.chunks, adapters, self._adapters)
            recorded = self._adapted = self._adapted or self._record_adapted()
        self._seats.place(step.chunks)
        if any(chunk.readout is not None for chunk in step.chunks):
            return self._readable_pass(adapted, recorded)
        return recorded

    def _readable_pass(self, adapted: bool, recorded: RecordedPass) -> RecordedPass:
        """The pass whose rows can be read, in the memory of the one that it replaces."""
        assert self._record_readable is not None, "nothing runs after close()"
        if adapted not in self._readable:
            adapters = self._recorded_adapters if adapted else None
            self._readable[adapted] = self._record_readable(adapters, recorded.program.memory)
        return self._readable[adapted]

    def _record_adapted(self) -> RecordedPass:
        """The pass with a place for adapters, in the memory of the other one, or the other way round: the larger's."""
        assert self._record is not None, "nothing runs after close()"
        assert self._plain is not None, "nothing runs after close()"
        memory = self._plain.program.memory
        adapted = self._record(self._recorded_adapters, memory)
        if adapted.program.memory is not memory:
            self._plain = self._record(None, adapted.program.memory)
            self._readable.clear()
        return adapted

    def _read_rows(self, step: Step, recorded: RecordedPass) -> Sequence[Report]:
        """What chunks report of their rows, which are there until the next step."""
        return () if recorded.reader is None else recorded.reader.read(step.number, step.chunks, self._pool)

    def _write_masks(self, chunks: Sequence[Chunk], masks: TokenMasks) -> None:
        row_bytes, row = mask_bytes(self._vocab_size), 0
        for number, chunk in enumerate(chunks):
            if not chunk.sample:
                continue
            num_rows = chunk.num_drafts + 1
            mask = masks.get(number) if chunk.masked else None
            if mask is not None:
                check_mask(number, mask, num_rows * row_bytes)
                self._sampling_buffers.allow(row, num_rows, mask)
            row += num_rows

    def _read(
        self,
        step: Step,
        drawn: SampledBuffers,
        drawing: Sequence[Chunk],
        wanted: Sequence[SeatSampling],
        reports: Sequence[Report],
    ) -> StepResult:
        """What the chunks drew and report, in the order of the step's."""
        drawn_by_chunk = self._read_drawing(step.number, drawn, drawing, wanted)
        if reports:
            return with_reports(step.chunks, drawn_by_chunk, reports)
        sampled = iter(drawn_by_chunk)
        return tuple([next(sampled) if chunk.sample else None for chunk in step.chunks])

    def _read_drawing(
        self, step_number: int, drawn: SampledBuffers, chunks: Sequence[Chunk], wanted: Sequence[SeatSampling]
    ) -> list[Sampled]:
        """What the chunks drew; the last token of each goes to its seat.

        Guesses count as far as they agree with what was drawn. A chunk with a row whose logits are not finite is a
        failure of its own: an adapter with enormous weights is no matter of the other rows. So is a masked one that has
        a row without a token to draw.
        """
        num_rows = self._buffers.counts[2]
        token_ids = drawn.token_ids[:num_rows].tolist()
        best_logits = drawn.best_logits[:num_rows].tolist()
        sampled: list[Sampled] = []
        last_tokens: list[int] = []
        first = 0
        for chunk, settings in zip(chunks, wanted, strict=True):
            end = first + 1
            if chunk.num_drafts:
                end += _num_right(chunk, token_ids[first:])
            last_tokens.append(token_ids[end - 1])
            if not all(map(math.isfinite, best_logits[first:end])):
                failure = not_finite(step_number, best_logits[first:end])
                sampled.append(Sampled((), failure=failure))
            elif chunk.masked and -math.inf in drawn.best_scores[first:end]:
                sampled.append(Sampled((), failure=nothing_allowed(step_number)))
            elif settings.num_logprobs is None:
                sampled.append(Sampled(tuple(token_ids[first:end])))
            else:
                num_best, num_asked = min(settings.num_logprobs, self._vocab_size), len(settings.logprob_token_ids)
                logprobs = tuple([_logprobs(drawn, row, num_best, num_asked) for row in range(first, end)])
                sampled.append(Sampled(tuple(token_ids[first:end]), logprobs))
            first += chunk.num_drafts + 1
        self._buffers.last_tokens[[chunk.seat for chunk in chunks]] = last_tokens
        return sampled

    def _apply_deltas(self, step: Step) -> None:
        if self._plain is None:
            raise RuntimeError(f"step {step.number} was submitted after close()")
        for seat in step.released:
            self._sampling.release(seat)
            self._seats.release(seat)
        for taken in step.taken:
            self._sampling.take(taken)
            self._seats.take(taken)


@dataclass(slots=True)
class _Undrawn:
    """A step whose masks have not come, or had not when it was submitted."""

    step: Step
    recorded: RecordedPass
    drawing: Sequence[Chunk]
    wanted: Sequence[SeatSampling]
    reports: Sequence[Report]
    result: StepResult | None = None

    def read(self) -> StepResult:
        if self.result is None:
            raise RuntimeError(f"step {self.step.number} was given up while its masks were missing")
        return self.result


def _logprobs(drawn: SampledBuffers, row: int, num_best: int, num_asked: int) -> SampledLogprobs:
    return SampledLogprobs(
        float(drawn.logprobs[row]),
        tuple(drawn.top_token_ids[row, :num_best].tolist()),
        tuple(drawn.top_logprobs[row, :num_best].tolist()),
        tuple(drawn.asked_logprobs[row, :num_asked].tolist()),
    )


def _num_right(chunk: Chunk, drawn: Sequence[int]) -> int:
    """How many of the chunk's guesses agree with what was drawn before each of them."""
    assert chunk.token_ids is not None, "guesses are given"
    guesses = chunk.token_ids[-chunk.num_drafts :]
    wrong = (index for index, guess in enumerate(guesses) if guess != drawn[index])
    return next(wrong, chunk.num_drafts)
