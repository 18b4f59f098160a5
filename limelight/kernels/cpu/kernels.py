"""`Kernels` in C for the CPU: every method records an operation; `record` turns a pass into a program.

Weights are packed for the variant that runs (`packing.py`), activations are float32 rows, and rows that meet quantised
weights become int8 on the way (`csrc/quantize.h`). What a row gives depends on this row and its sequence alone: no
reduction is split by batch, thread or load, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu import attention, elementwise, experts, linear, low_rank, packing, sampling
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Recorder, Value
from limelight.kernels.cpu.step_buffers import StepBuffers
from limelight.kernels.cpu.weight_memory import WeightMemory
from limelight.kernels.interface import (
    AttentionSettings,
    ExpertWeights,
    KVLayout,
    LinearSegment,
    LowRankRows,
    Numbers,
    StoredTensor,
)

if TYPE_CHECKING:
    from torch import Tensor


class CpuKernels:
    """See `Kernels`. One pass is recorded at a time.

    Attributes:
        library: the compiled variant.
    """

    page_sizes: tuple[int, ...] = attention.PAGE_SIZES
    pages_per_run = attention.PAGES_OF_A_RUN
    stored_formats: frozenset[str] = linear.STORED_FORMATS
    device = "cpu"

    def __init__(self, library: Library) -> None:
        self.library = library
        self._weight_memory = WeightMemory()
        self._recorder: Recorder | None = None

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Methods record into the recorder until the end of the block."""
        if self._recorder is not None:
            raise RuntimeError("a pass is being recorded already")
        self._recorder = Recorder(self.library)
        try:
            yield self._recorder
        finally:
            self._recorder = None

    @property
    def recorder(self) -> Recorder:
        """The recorder of the running recording.

        Raises:
            RuntimeError: nothing is being recorded; these kernels compute nothing at once.
        """
        if self._recorder is None:
            raise RuntimeError("these kernels record a pass and compute nothing at once; use recording()")
        return self._recorder

    # Weights and pages: made at once.
    def numbers(self, values: NDArray[np.float32]) -> Numbers:
        """The array itself."""
        return values

    def page_bytes(self, layout: KVLayout) -> int:
        """Memory of a page."""
        return attention.page_bytes(layout)

    def allocate_kv(self, layout: KVLayout) -> attention.KVPool:
        """The pool, uninitialised: memory is committed as pages are first written."""
        return attention.allocate_kv(layout)

    def packed_bytes(self, shape: tuple[int, int], stored: str) -> int:
        """Memory that a matrix [out, in] takes once packed."""
        return linear.packed_bytes(shape, stored)

    def quantize(self, matrix: Tensor | NDArray[np.float32], format_name: str) -> StoredTensor:
        """See `Kernels`; "Q8_0" and "Q4_1" are made."""
        rows = packing.quantize_tensor(self.library, matrix.reshape(-1, matrix.shape[-1]), format_name).rows
        return StoredTensor(format_name, tuple(matrix.shape), rows.reshape(matrix.shape[0], -1))

    def pack_linear(self, segments: Sequence[LinearSegment]) -> linear.PackedLinear:
        """Matrices in the order in which the products read them."""
        return linear.pack_linear(self.library, segments, self._weight_memory)

    def pack_embedding(self, table: Tensor | StoredTensor, *, is_head: bool) -> tuple[Any, linear.PackedLinear | None]:
        """One packed matrix serves both: a row is read out of it as well as multiplied with."""
        return linear.pack_embedding(self.library, table, self._weight_memory, is_head=is_head)

    def embedding_bytes(self, shape: tuple[int, int], stored: str, *, is_head: bool) -> int:
        """Memory that a table [vocab, hidden] takes once packed, whether it is the head too or not."""
        return linear.packed_bytes(shape, stored)

    def pack_experts(self, weights: ExpertWeights) -> experts.PackedExperts:
        """Each expert's matrices as `pack_linear` packs them."""
        return experts.pack_experts(self.library, weights, self._weight_memory)

    # Operations: recorded.
    def linear(self, inputs: Value, packed: linear.PackedLinear) -> Value:
        """See `Kernels`."""
        return linear.linear(self.recorder, inputs, packed)

    def embed(self, token_ids: Value, table: Any, scale: float) -> Value:
        """See `Kernels`."""
        return linear.embed(self.recorder, token_ids, table, scale)

    def add_low_rank(self, outputs: Value, inputs: Value, additions: Sequence[LowRankRows]) -> None:
        """See `Kernels`; recorded passes take their adapters from `low_rank.py` instead."""
        low_rank.add_low_rank(self.recorder, outputs, inputs, additions)

    def add_norm(self, hidden: Value, residual: Value | None, weight: Numbers, epsilon: float) -> tuple[Value, Value]:
        """See `Kernels`; the sum lies where `residual` was."""
        return elementwise.add_norm(self.recorder, hidden, residual, weight, epsilon)

    def select_rows(self, values: Value, rows: Value) -> Value:
        """See `Kernels`."""
        return elementwise.select_rows(self.recorder, values, rows)

    def logits(self, values: Value, soft_cap: float | None) -> Value:
        """See `Kernels`."""
        return elementwise.logits(self.recorder, values, soft_cap)

    def gate(self, gate_up: Value, activation: str = "silu", limit: float | None = None) -> Value:
        """See `Kernels`."""
        return elementwise.gate(self.recorder, gate_up, activation, limit)

    def add_gated(self, outputs: Value, scores: Value, values: Value) -> Value:
        """See `Kernels`."""
        return elementwise.add_gated(self.recorder, outputs, scores, values)

    def plan(self, batch: StepBuffers, kv: attention.KVPool) -> attention.AttentionPlan:
        """See `Kernels`."""
        return attention.AttentionPlan(batch, kv)

    def rotation(self, cos: Numbers, sin: Numbers, batch: StepBuffers) -> attention.Rotation:
        """See `Kernels`."""
        return attention.rotation(cos, sin, batch)

    def rotate_and_write(
        self,
        kv: attention.KVPool,
        layer: int,
        qkv: Value,
        rotation: attention.Rotation,
        plan: attention.AttentionPlan,
        q_norm: Numbers | None,
        k_norm: Numbers | None,
        epsilon: float,
    ) -> Value:
        """See `Kernels`; the queries are a value of their own, [tokens, heads * head_dim]."""
        return attention.rotate_and_write(self.recorder, kv, layer, qkv, rotation, plan, q_norm, k_norm, epsilon)

    def write(
        self, kv: attention.KVPool, layer: int, keys: Value, values: Value, plan: attention.AttentionPlan
    ) -> None:
        """See `Kernels`."""
        attention.write(self.recorder, kv, layer, keys, values, plan)

    def attend(
        self,
        kv: attention.KVPool,
        layer: int,
        queries: Value,
        plan: attention.AttentionPlan,
        settings: AttentionSettings,
    ) -> Value:
        """See `Kernels`."""
        return attention.attend(self.recorder, kv, layer, queries, plan, settings)

    def route(self, scores: Value, num_chosen: int, *, chosen_first: bool, normalize: bool) -> tuple[Value, Value]:
        """See `Kernels`."""
        return experts.route(self.recorder, scores, num_chosen, chosen_first=chosen_first, normalize=normalize)

    def experts(self, inputs: Value, chosen: Value, shares: Value, packed: experts.PackedExperts) -> Value:
        """See `Kernels`."""
        return experts.experts(self.recorder, inputs, chosen, shares, packed)

    def sample(self, logits: Value, batch: sampling.SamplingBuffers) -> sampling.SampledBuffers:
        """See `Kernels`."""
        return sampling.sample(self.recorder, logits, batch)
