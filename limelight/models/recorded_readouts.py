"""What chunks report of their rows behind a recorded pass: scores of a prompt's tokens, and hidden states.

The pass leaves what its layers gave in memory of its own; two short programs read rows of that, a slice at a time.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from limelight.generation import Pooling
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.recorder import Value, bound
from limelight.kernels.cpu.sampling import SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.cpu.threads import ThreadPool
from limelight.models.drawing import Report, not_finite
from limelight.models.forward_batch import Model
from limelight.models.lora.recorded_adapters import RecordedAdapters
from limelight.step import Chunk, SampledLogprobs

ROWS_AT_ONCE = 64
"""Rows whose logits exist at once."""


class KeptRows:
    """What the layers of a recorded pass give for all rows, in memory that nothing else uses.

    Attributes:
        hidden, residual: float32 [most tokens of a step, hidden size]; their sum is what the final norm takes.
    """

    def __init__(self, hidden: Value, residual: Value | None) -> None:
        """Let the two lie in new memory; before the recording is finished."""
        self.hidden = _in_own_memory(hidden)
        self.residual = None if residual is None else _in_own_memory(residual)


class RowReader:
    """The two programs."""

    def __init__(
        self, model: Model, kernels: CpuKernels, kept: KeptRows, adapters: RecordedAdapters | None, vocab_size: int
    ) -> None:
        """Record them, with a place for adapters or without.

        Raises:
            MemoryError: there is not enough.
        """
        self._rows = rows = StepBuffers(
            StepLimits(
                num_tokens=ROWS_AT_ONCE, num_seats=ROWS_AT_ONCE, num_sampled=ROWS_AT_ONCE, max_pages=1, page_size=1
            )
        )
        rows.sample_seats[:] = np.arange(ROWS_AT_ONCE)
        self._settings = SamplingBuffers(rows, vocab_size)
        self._adapters = adapters
        chosen = bound(rows.sampled, rows.sample_rows)
        read_adapters = None if adapters is None else adapters.read_rows
        with kernels.recording() as recorder:
            logits = model.project(model.normed(kept.hidden, kept.residual, chosen), read_adapters)
            recorder.keep(logits)
            self._scored = kernels.sample(logits, self._settings)
            self._scoring, values = recorder.finish()
            self._logits: NDArray[np.float32] = values[logits]
        with kernels.recording() as recorder:
            normed = model.normed(kept.hidden, kept.residual, chosen)
            recorder.keep(normed)
            self._norming, values = recorder.finish(self._scoring.memory)
            self._normed: NDArray[np.float32] = values[normed]

    def read(self, step_number: int, chunks: Sequence[Chunk], pool: ThreadPool) -> list[Report]:
        """What the chunks with a readout report, in order, right after their step."""
        reports, start = [], 0
        for chunk in chunks:
            if chunk.readout is not None:
                reports.append(self._read(step_number, chunk, start, pool))
            start += chunk.num_tokens
        return reports

    def _read(self, step_number: int, chunk: Chunk, start: int, pool: ThreadPool) -> Report:
        """Of a chunk whose rows begin at `start`."""
        assert chunk.readout is not None
        readout, first, end = chunk.readout, start + chunk.readout.first_row, start + chunk.num_tokens
        scores: list[SampledLogprobs] = []
        for done in range(0, len(readout.next_token_ids), ROWS_AT_ONCE):
            targets = np.array(readout.next_token_ids[done : done + ROWS_AT_ONCE], np.int32)
            best_logits = self._score(first + done, targets, readout.num_logprobs, pool)
            if not all(map(math.isfinite, best_logits)):
                return Report(failure=not_finite(step_number, best_logits))
            scores += self._scores(targets, readout.num_logprobs)
        if readout.pooling is None:
            return Report(tuple(scores))
        hidden = self._sum(end - 1 if readout.pooling is Pooling.LAST else first, end, pool)
        if not np.isfinite(hidden).all():
            return Report(failure=not_finite(step_number, [math.nan]))
        return Report(tuple(scores), hidden.astype("<f4").tobytes())

    def _score(self, first: int, targets: NDArray[np.int32], num_logprobs: int, pool: ThreadPool) -> list[float]:
        """Run a slice of rows; the largest logit of each."""
        self._choose(first, len(targets))
        seats = self._settings.seats
        seats["num_logprobs"], seats["num_asked"] = num_logprobs, 1
        seats["asked_ids"][: len(targets)] = targets.ctypes.data + np.arange(len(targets)) * targets.itemsize
        self._scoring.run(pool)
        best_logits: list[float] = self._scored.best_logits[: len(targets)].tolist()
        return best_logits

    def _scores(self, targets: NDArray[np.int32], num_logprobs: int) -> list[SampledLogprobs]:
        """Of the slice that was run last."""
        scored, num = self._scored, len(targets)
        logits = self._logits[:num]
        ranks = np.count_nonzero(logits >= logits[np.arange(num), targets][:, None], axis=1)
        num_best = min(num_logprobs, logits.shape[1])
        return [
            SampledLogprobs(logprob, tuple(top_ids), tuple(top), rank=rank)
            for logprob, top_ids, top, rank in zip(
                scored.asked_logprobs[:num, 0].tolist(),
                scored.top_token_ids[:num, :num_best].tolist(),
                scored.top_logprobs[:num, :num_best].tolist(),
                ranks.tolist(),
                strict=True,
            )
        ]

    def _sum(self, first: int, end: int, pool: ThreadPool) -> NDArray[np.float64]:
        """Of hidden states behind the final norm."""
        total = np.zeros(self._normed.shape[1])
        for start in range(first, end, ROWS_AT_ONCE):
            num = min(ROWS_AT_ONCE, end - start)
            self._choose(start, num)
            self._norming.run(pool)
            total += self._normed[:num].sum(0, dtype=np.float64)
        return total

    def _choose(self, first: int, num: int) -> None:
        self._rows.counts[2] = num
        self._rows.sample_rows[:num] = np.arange(first, first + num)
        if self._adapters is not None:
            self._adapters.choose(first, num)


def _in_own_memory(value: Value) -> Value:
    value.memory = np.zeros((value.rows.largest, value.width), value.dtype)
    return value
