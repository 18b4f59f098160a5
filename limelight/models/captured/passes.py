"""A step's two passes over fixed buffers: the layers, and the head with the draw behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from limelight.kernels.interface import Rows
from limelight.kernels.step_kernels import StepKernels
from limelight.kernels.triton.step_memory import DrawBatch
from limelight.models.captured.buffers import StepBuffers
from limelight.models.forward_batch import ForwardBatch, Model
from limelight.models.layers import Adapters
from limelight.models.readouts import DeviceReport, Reading, read_rows


class CapturableModel(Model, Protocol):
    """A decoder whose head is one call."""

    def head(self, hidden: Rows, residual: Rows | None, batch: ForwardBatch) -> Rows:
        """Logits [sampled, vocab] float32."""
        ...


class Passes:
    """The work of a step. The same functions run captured and uncaptured."""

    def __init__(self, model: CapturableModel, kernels: StepKernels, kv: Any, buffers: StepBuffers, page_size: int):
        self._model = model
        self._kernels = kernels
        self._kv = kv
        self._buffers = buffers
        self._page_size = page_size

    @torch.inference_mode()
    def patch(self) -> None:
        """Write the patches of the step into the seats."""
        self._kernels.patch_seats(self._buffers.step, self._buffers.seats)

    def decodes(self, num_chunks: int) -> Callable[[], None]:
        """Patches and layers for at most so many chunks of one row each."""

        def work() -> None:
            self.patch()
            self.body(num_chunks, num_chunks, only_decodes=True)

        return work

    def mixed(self, num_rows: int) -> Callable[[], None]:
        """Patches and layers for at most so many rows, of as many chunks as there are seats."""

        def work() -> None:
            self.patch()
            self.body(num_rows, min(num_rows, self._buffers.limits.chunks), only_decodes=False)

        return work

    def drawing(self, num_sampled: int) -> Callable[[], None]:
        """Head and draw for at most so many sampled rows."""

        def work() -> None:
            self.head(num_sampled)

        return work

    @torch.inference_mode()
    def body(
        self, num_rows: int, num_chunks: int, *, only_decodes: bool, adapters: Adapters | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """All layers, and what the head needs of the sampled rows into the buffers; what the layers gave for all."""
        buffers = self._buffers
        batch = buffers.batch(num_rows, num_chunks, only_decodes=only_decodes)
        self._kernels.prepare(batch, self._page_size)
        forward = ForwardBatch(token_ids=batch.token_ids, attention=batch, sample_rows=None, adapters=adapters)
        hidden, residual = self._model.body(forward, self._kv)
        num_sampled = min(num_rows, buffers.limits.sampled)
        rows = buffers.step.sample_rows[:num_sampled]
        buffers.hidden[:num_sampled].copy_(self._kernels.select_rows(hidden, rows))
        if residual is not None:
            buffers.residual[:num_sampled].copy_(self._kernels.select_rows(residual, rows))
        return hidden, residual

    @torch.inference_mode()
    def read_rows(
        self, hidden: Tensor, residual: Tensor | None, readings: Sequence[Reading], targets: Tensor
    ) -> list[DeviceReport]:
        """See `readouts.read_rows`; `targets` are pinned."""
        on_device = targets.to(hidden.device, non_blocking=True).long()
        return read_rows(self._model, self._kernels, hidden, residual, readings, on_device)

    @torch.inference_mode()
    def head(self, num_sampled: int, adapters: Adapters | None = None) -> Tensor:
        """Draw, and write what was drawn to the seats; the logits [num_sampled, vocab] float32 as the model gave them.

        Args:
            adapters: of the sampled rows.
        """
        buffers = self._buffers
        batch = ForwardBatch(token_ids=None, attention=None, sample_rows=None, sampled_adapters=adapters)
        hidden, residual = buffers.hidden[:num_sampled], buffers.residual[:num_sampled]
        logits: Tensor = self._model.head(hidden, residual, batch)
        draw = DrawBatch(
            step=buffers.step,
            seats=buffers.seats,
            num_sampled=num_sampled,
            allowed=buffers.allowed,
            row_token_ids=buffers.token_ids,
        )
        self._kernels.draw(logits, draw, buffers.drawn)
        self._kernels.finish(draw, buffers.drawn)
        return logits
