"""Runs steps on the CPU by replaying a forward pass that was recorded once: a step is a few numbers and one call.

Everything up to the drawn tokens happens inside the call, on the threads of a pool. No torch runs while steps do.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from limelight.kernels.cpu.attention import KVPool
from limelight.kernels.cpu.expand import expand
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.recorder import Program, bound
from limelight.kernels.cpu.sampling import SampledBuffers, SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.cpu.threads import ThreadPool
from limelight.kernels.interface import Rows
from limelight.models.forward_batch import ForwardBatch
from limelight.models.layers import ProjectionShape
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.lora.recorded_adapters import RecordedAdapters
from limelight.models.recorded_sampling import RecordedSamplingSeats
from limelight.models.recorded_seats import RecordedSeats
from limelight.models.sampler import not_finite
from limelight.step import Capacity, Chunk, Sampled, SampledLogprobs, Step, StepResult


class RecordableModel(Protocol):
    """A decoder, with its weights, whose pass can be recorded.

    Attributes:
        adaptable: the projections that adapters can change.
    """

    adaptable: tuple[ProjectionShape, ...]

    def forward(self, batch: ForwardBatch, kv: Any) -> Rows:
        """Record the pass; logits [sampled, vocab] float32."""
        ...


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
    """See `StepExecutor`. Owns weights, KV pool, seats, the recorded pass and its threads.

    `submit` runs the step to its end.

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
        sampling = SamplingBuffers(self._buffers, vocab_size)
        self._sampling = RecordedSamplingSeats(sampling)
        self._adapters = adapters
        self._recorded_adapters = RecordedAdapters(model.adaptable, kernels, limits, max_adapters, max_adapter_rank)
        self._program: Program | None
        self._program, self._sampled = self._record(model, kernels, kv, sampling)
        self._pool = ThreadPool(kernels.library, num_threads)

    @property
    def working_bytes(self) -> int:
        """Memory of the values of a step."""
        return 0 if self._program is None else self._program.num_bytes

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """Apply the step's deltas, run it, and return a function that gives its result.

        Raises:
            ValueError: the step contradicts the seats.
            MemoryError: the threads' working memory cannot be had.
            RuntimeError: `close` has been called.
        """
        if self._program is None:
            raise RuntimeError(f"step {step.number} was submitted after close()")
        self._apply_deltas(step)
        if not step.chunks:
            return tuple
        drawing = [chunk for chunk in step.chunks if chunk.sample]
        wanted = [self._sampling.settings(chunk.seat).num_logprobs for chunk in drawing]
        self._recorded_adapters.fill(step.chunks, self._seats.adapters, self._adapters)
        self._seats.place(step.chunks)
        self._program.run(self._pool)
        drawn = iter(self._read(step.number, drawing, wanted))
        result = tuple([next(drawn) if chunk.sample else None for chunk in step.chunks])
        return lambda: result

    def profile(self, step: Step) -> list[tuple[str, float]]:
        """Run a step, one operation after the other; name of each, and the seconds that it took. Nothing is drawn from
        the result: the seats keep their last tokens.

        Raises:
            ValueError, MemoryError, RuntimeError: as `submit`.
        """
        if self._program is None:
            raise RuntimeError(f"step {step.number} was submitted after close()")
        self._apply_deltas(step)
        self._recorded_adapters.fill(step.chunks, self._seats.adapters, self._adapters)
        self._seats.place(step.chunks)
        return self._program.profile(self._pool)

    def close(self) -> None:
        """Let go of weights, pages and threads."""
        self._program = None
        self._adapters = {}
        self._pool.close()

    def _record(
        self, model: RecordableModel, kernels: CpuKernels, kv: KVPool, sampling: SamplingBuffers
    ) -> tuple[Program, SampledBuffers]:
        buffers = self._buffers
        batch = ForwardBatch(
            token_ids=bound(buffers.tokens, buffers.token_ids),
            attention=buffers,
            sample_rows=bound(buffers.sampled, buffers.sample_rows),
            adapters=self._recorded_adapters.all_rows,
            sampled_adapters=self._recorded_adapters.sampled_rows,
        )
        with kernels.recording() as recorder:
            expand(recorder, buffers)
            logits = model.forward(batch, kv)
            sampled = kernels.sample(logits, sampling)
            program, _ = recorder.finish()
        return program, sampled

    def _read(self, step_number: int, chunks: Sequence[Chunk], wanted: Sequence[int | None]) -> list[Sampled]:
        """What the chunks drew; the last token of each goes to its seat.

        Guesses count as far as they agree with what was drawn. A chunk with a row whose logits are not finite is a
        failure of its own: an adapter with enormous weights is no matter of the other rows.
        """
        num_rows = self._buffers.counts[2]
        token_ids = self._sampled.token_ids[:num_rows].tolist()
        best_logits = self._sampled.best_logits[:num_rows].tolist()
        sampled: list[Sampled] = []
        last_tokens: list[int] = []
        first = 0
        for chunk, num_logprobs in zip(chunks, wanted, strict=True):
            end = first + 1
            if chunk.num_drafts:
                end += _num_right(chunk, token_ids[first:])
            last_tokens.append(token_ids[end - 1])
            if not all(map(math.isfinite, best_logits[first:end])):
                failure = not_finite(step_number, best_logits[first:end])
                sampled.append(Sampled((), failure=failure))
            elif num_logprobs is None:
                sampled.append(Sampled(tuple(token_ids[first:end])))
            else:
                logprobs = tuple([self._logprobs(row, num_logprobs) for row in range(first, end)])
                sampled.append(Sampled(tuple(token_ids[first:end]), logprobs))
            first += chunk.num_drafts + 1
        self._buffers.last_tokens[[chunk.seat for chunk in chunks]] = last_tokens
        return sampled

    def _logprobs(self, row: int, num_best: int) -> SampledLogprobs:
        sampled = self._sampled
        num_best = min(num_best, self._vocab_size)
        return SampledLogprobs(
            float(sampled.logprobs[row]),
            tuple(sampled.top_token_ids[row, :num_best].tolist()),
            tuple(sampled.top_logprobs[row, :num_best].tolist()),
        )

    def _apply_deltas(self, step: Step) -> None:
        for seat in step.released:
            self._sampling.release(seat)
            self._seats.release(seat)
        for taken in step.taken:
            self._sampling.take(taken)
            self._seats.take(taken)


def _num_right(chunk: Chunk, drawn: Sequence[int]) -> int:
    """How many of the chunk's guesses agree with what was drawn before each of them."""
    assert chunk.token_ids is not None, "guesses are given"
    guesses = chunk.token_ids[-chunk.num_drafts :]
    wrong = (index for index, guess in enumerate(guesses) if guess != drawn[index])
    return next(wrong, chunk.num_drafts)
