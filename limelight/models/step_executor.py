"""Runs steps on a torch device: seats, forward pass, draw. One thread submits; waiting may happen on another.

Nothing global of torch is touched: gradients are off inside `submit` alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.kernels.interface import Kernels
from limelight.models.drawing import with_reports
from limelight.models.forward_batch import ForwardBatch, Model
from limelight.models.forward_tensors import build_forward_batch
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.readouts import DeviceReport, read_rows, readings_of
from limelight.models.sampler import Drawn, Sampler
from limelight.models.sampling_seats import SamplingSeats
from limelight.models.seats import Seats
from limelight.models.token_masks import allowed_tokens
from limelight.step import Capacity, Step, StepResult, TokenMasks


class TorchStepExecutor:
    """See `StepExecutor`. Owns weights, KV pool and seats.

    On the CPU `submit` runs the step to its end. On a GPU it returns when the work is enqueued, and reading the result
    waits for it.
    """

    def __init__(
        self,
        model: Model,
        kernels: Kernels,
        kv: Any,
        capacity: Capacity,
        adapters: Mapping[int, AdapterWeights] | None = None,
    ) -> None:
        """Take over weights and pages; `adapters` are the loaded ones by id, and may change between steps."""
        self._model: Model | None = model
        self._kernels = kernels
        self._kv = kv
        self._adapters = {} if adapters is None else adapters
        self._page_size = capacity.page_size
        max_pages = -(-capacity.max_model_len // capacity.page_size)
        with torch.inference_mode():
            self._seats = Seats(capacity.num_seats, max_pages, capacity.page_size, kernels.device)
            self._sampling = SamplingSeats(capacity.num_seats, capacity.vocab_size, kernels.device)
        self._sampler = Sampler(kernels, self._seats, self._sampling)
        self._vocab_size = capacity.vocab_size
        self._undrawn: _Undrawn | None = None

    @torch.inference_mode()
    def submit(self, step: Step) -> Callable[[], StepResult]:
        """Apply the step's deltas, run it, and return what waits for its result.

        Raises:
            ValueError: the step contradicts the seats.
            RuntimeError: torch failed, or `close` has been called.
        """
        if self._model is None:
            raise RuntimeError(f"step {step.number} was submitted after close()")
        self._undrawn = None
        self._apply_deltas(step)
        if not step.chunks:
            return tuple
        batch = build_forward_batch(step.chunks, self._seats, self._page_size, self._kernels, self._adapters)
        logits, reports = self._run(step, batch)
        sampling = [chunk for chunk in step.chunks if chunk.sample]
        if any(chunk.masked for chunk in sampling):
            self._undrawn = undrawn = _Undrawn(step, logits, reports)
            return undrawn.read
        drawn = self._sampler.draw(step.number, logits, sampling) if sampling else None
        return lambda: _in_chunk_order(step, drawn, reports)

    @torch.inference_mode()
    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        """Draw the tokens of the last step.

        Raises:
            ValueError: a mask has the wrong size, or no such step waits for masks.
        """
        undrawn, self._undrawn = self._undrawn, None
        if undrawn is None or undrawn.step.number != step_number:
            raise ValueError(f"step {step_number} does not wait for masks")
        allowed = torch.from_numpy(allowed_tokens(undrawn.step.chunks, masks, self._vocab_size))
        sampling = [chunk for chunk in undrawn.step.chunks if chunk.sample]
        undrawn.drawn = self._sampler.draw(step_number, undrawn.logits, sampling, allowed.to(self._kernels.device))

    def close(self) -> None:
        """Let go of weights and pages."""
        self._model = None
        self._kv = None
        self._undrawn = None
        self._adapters = {}

    def _run(self, step: Step, batch: ForwardBatch) -> tuple[Tensor, Sequence[DeviceReport]]:
        assert self._model is not None, "nothing runs after close()"
        if all(chunk.readout is None for chunk in step.chunks):
            return self._model.forward(batch, self._kv), ()
        model = self._model
        hidden, residual = model.body(batch, self._kv)
        readings, targets = readings_of(step.chunks, self._seats.adapters, self._adapters)
        target_ids = torch.tensor(targets, dtype=torch.int64, device=hidden.device)
        reports = read_rows(model, self._kernels, hidden, residual, readings, target_ids)
        normed = model.normed(hidden, residual, batch.sample_rows)
        return model.project(normed, batch.sampled_adapters), reports

    def _apply_deltas(self, step: Step) -> None:
        for seat in step.released:
            self._sampling.release(seat)
        for taken in step.taken:
            self._sampling.take(taken)
        self._seats.clear([*step.released, *(taken.seat for taken in step.taken)])
        for taken in step.taken:
            self._seats.adapters[taken.seat] = taken.adapter
        self._seats.append_pages(step.chunks)


@dataclass(slots=True)
class _Undrawn:
    """A step whose masks have not come, or had not when it was submitted."""

    step: Step
    logits: Tensor
    reports: Sequence[DeviceReport]
    drawn: Drawn | None = None

    def read(self) -> StepResult:
        if self.drawn is None:
            raise RuntimeError(f"step {self.step.number} was given up while its masks were missing")
        return _in_chunk_order(self.step, self.drawn, self.reports)


def _in_chunk_order(step: Step, drawn: Drawn | None, reports: Sequence[DeviceReport]) -> StepResult:
    sampled = [] if drawn is None else drawn.read()
    return with_reports(step.chunks, sampled, [report.read(step.number) for report in reports])
