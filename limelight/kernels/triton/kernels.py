"""`Kernels` for NVIDIA GPUs, over the fixed buffers of a step: every method but the products is a launch of our own.

Products are cuBLAS's, or torch's own with weights of 8 and 4 bits (`linear.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.interface import (
    AttentionSettings,
    ExpertWeights,
    KVLayout,
    LinearSegment,
    LowRankRows,
    SampledTokens,
    SamplingBatch,
    StoredTensor,
)
from limelight.kernels.reference import ReferenceExperts, ReferenceKernels
from limelight.kernels.triton import attention, elementwise, linear, sampling, step_input, weight_formats
from limelight.kernels.triton import experts as expert_products
from limelight.kernels.triton import kv as kv_memory
from limelight.kernels.triton.attention import AttentionPlan, Processor
from limelight.kernels.triton.kv import Rotation, TritonKV
from limelight.kernels.triton.linear import PackedLinear

if TYPE_CHECKING:
    from torch import Tensor

    from limelight.kernels.triton.step_memory import DrawBatch, DrawnWords, RowBatch, SeatWords, StepWords


class TritonKernels:
    """See `StepKernels`."""

    page_sizes: tuple[int, ...] = kv_memory.PAGE_SIZES
    pages_per_run = 1

    def __init__(self, device: str, processor: Processor) -> None:
        """Launch on `device`, which has this processor."""
        self.device = device
        self.stored_formats = weight_formats.stored_formats(processor.capability)
        self._processor = processor
        self._torch = ReferenceKernels(device)

    # Weights and pages.
    def numbers(self, values: NDArray[np.float32]) -> Tensor:
        """A tensor on the device."""
        return self._torch.numbers(values)

    def page_bytes(self, layout: KVLayout) -> int:
        """What the layout says."""
        return layout.page_bytes

    def allocate_kv(self, layout: KVLayout) -> TritonKV:
        """The pool, uninitialised."""
        return kv_memory.allocate_kv(layout, self.device, self._processor.capability)

    def packed_bytes(self, shape: tuple[int, int], stored: str) -> int:
        """As much as the rows; see `weight_formats.py`."""
        return weight_formats.packed_bytes(shape, stored)

    def embedding_bytes(self, shape: tuple[int, int], stored: str, *, is_head: bool) -> int:
        """As much as the tensor, whether it is the head too or not."""
        return weight_formats.packed_bytes(shape, stored)

    def quantize(self, matrix: Tensor | NDArray[np.float32], format_name: str) -> StoredTensor:
        """A matrix in 8 or 4 bits; see `weight_formats.py`.

        Raises:
            ValueError: the format does not fit it.
        """
        return weight_formats.quantize(matrix, format_name, self.device)

    def pack_linear(self, segments: Sequence[LinearSegment]) -> PackedLinear:
        """Neighbours of one format as one product.

        Raises:
            ValueError: the segments disagree on the input size.
        """
        return linear.pack_linear(segments, self.device)

    def pack_embedding(self, table: Tensor | StoredTensor, *, is_head: bool) -> tuple[Tensor, PackedLinear | None]:
        """The table itself, and the same as a product."""
        assert not isinstance(table, StoredTensor), "tables are kept in 16 bits"
        return table, linear.pack_linear([LinearSegment(weight=table)], self.device) if is_head else None

    def pack_experts(self, weights: ExpertWeights) -> ReferenceExperts:
        """Gate and up as one matrix."""
        return self._torch.pack_experts(weights)

    # Products.
    def linear(self, inputs: Tensor, packed: PackedLinear) -> Tensor:
        """See `Kernels`."""
        return linear.linear(inputs, packed)

    def add_low_rank(self, outputs: Tensor, inputs: Tensor, additions: Sequence[LowRankRows]) -> None:
        """See `Kernels`."""
        self._torch.add_low_rank(outputs, inputs, additions)

    def route(self, scores: Tensor, num_chosen: int, *, chosen_first: bool, normalize: bool) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        return expert_products.route(scores, num_chosen, chosen_first=chosen_first, normalize=normalize)

    def experts(self, inputs: Tensor, chosen: Tensor, shares: Tensor, packed: ReferenceExperts) -> Tensor:
        """See `Kernels`."""
        return expert_products.experts(inputs, chosen, shares, packed)

    # What lies between them.
    def embed(self, token_ids: Tensor, table: Tensor, scale: float) -> Tensor:
        """See `Kernels`."""
        return elementwise.embed(token_ids, table, scale)

    def select_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        """See `Kernels`."""
        return values.index_select(0, rows)

    def logits(self, values: Tensor, soft_cap: float | None) -> Tensor:
        """See `Kernels`."""
        return values.float() if soft_cap is None else elementwise.capped_logits(values, soft_cap)

    def add_norm(
        self, hidden: Tensor, residual: Tensor | None, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels`; the sum lies where `residual` was."""
        return elementwise.add_norm(hidden, residual, weight, epsilon)

    def gate(self, gate_up: Tensor, activation: str = "silu", limit: float | None = None) -> Tensor:
        """See `Kernels`."""
        return elementwise.gate(gate_up, activation, limit)

    def add_gated(self, outputs: Tensor, scores: Tensor, values: Tensor) -> Tensor:
        """See `Kernels`; the sum lies where `outputs` was."""
        return elementwise.add_gated(outputs, scores, values)

    # Attention.
    def plan(self, batch: RowBatch, kv: TritonKV) -> AttentionPlan:
        """See `Kernels`."""
        return AttentionPlan(batch, kv, self._processor)

    def rotation(self, cos: Tensor, sin: Tensor, batch: RowBatch) -> Rotation:
        """See `Kernels`."""
        return Rotation(cos, sin, batch)

    def rotate_and_write(
        self,
        kv: TritonKV,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        plan: AttentionPlan,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        epsilon: float,
    ) -> Tensor:
        """See `Kernels`."""
        return kv_memory.rotate_and_write(kv, layer, qkv, rotation, plan.batch, q_norm, k_norm, epsilon)

    def write(self, kv: TritonKV, layer: int, keys: Tensor, values: Tensor, plan: AttentionPlan) -> None:
        """See `Kernels`."""
        kv_memory.write(kv, layer, keys, values, plan.batch)

    def attend(
        self, kv: TritonKV, layer: int, queries: Tensor, plan: AttentionPlan, settings: AttentionSettings
    ) -> Tensor:
        """See `Kernels`."""
        return attention.attend(layer, queries, plan, settings)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SampledTokens:
        """See `Kernels`; for steps that are not over fixed buffers."""
        return self._torch.sample(logits, batch)

    # The ends of a step.
    def patch_seats(self, step: StepWords, seats: SeatWords) -> None:
        """See `StepKernels`."""
        step_input.patch_seats(step, seats)

    def prepare(self, batch: RowBatch, page_size: int) -> None:
        """See `StepKernels`."""
        step_input.prepare(batch, page_size)

    def draw(self, logits: Tensor, batch: DrawBatch, drawn: DrawnWords) -> None:
        """See `StepKernels`."""
        sampling.draw(logits, batch, drawn, self._processor.num_processors)

    def finish(self, batch: DrawBatch, drawn: DrawnWords) -> None:
        """See `StepKernels`."""
        sampling.finish(batch, drawn)
