"""What the values of a step will take: the pass is recorded over weights, pages and tables that are not there yet."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.attention import KVPool
from limelight.kernels.cpu.elementwise import activation_number
from limelight.kernels.cpu.experts import PackedExperts, PackedMatrices
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.linear import NO_BIAS, PackedLinear, PackedPart
from limelight.kernels.cpu.packing import format_of
from limelight.kernels.cpu.sampling import SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.interface import ExpertWeights, KVLayout, LinearSegment, StoredTensor
from limelight.models.checkpoint import Checkpoint
from limelight.models.decoder import Decoder
from limelight.models.kv_cache import kv_layout
from limelight.models.lora.recorded_adapters import RecordedAdapters
from limelight.models.recorded_pass import record_operations

NOTHING: NDArray[np.uint8] = np.empty(0, np.uint8)


def pass_bytes(
    checkpoint: Checkpoint,
    kernels: CpuKernels,
    kept_as: Callable[[str], str],
    limits: StepLimits,
    max_adapter_rank: int,
) -> int:
    """Memory of the values of the largest step, of the base model alone or with adapters: they share it.

    Args:
        kept_as: name of a matrix -> the dtype or format in which it is kept.
        max_adapter_rank: the largest of an adapter.
    """
    spec, outline = checkpoint.spec, _KernelsWithoutWeights(kernels.library)
    model = Decoder(spec, _ParametersByShape(checkpoint, kept_as), outline, 1, lambda _fraction: None)
    layout = kv_layout(spec, 1, limits.page_size, "float32")
    buffers = StepBuffers(limits)
    sampling = SamplingBuffers(buffers, spec.vocab_size)
    num_bytes = 0
    for adapters in (None, RecordedAdapters(model.adaptable, outline, limits, 1, max_adapter_rank)):
        with outline.recording() as recorder:
            record_operations(model, outline, _pool_without_pages(layout), buffers, sampling, adapters)
            num_bytes = max(num_bytes, recorder.num_bytes)
    return num_bytes


class _ParametersByShape:
    """See `layers.Parameters`: shapes, and nothing behind them."""

    def __init__(self, checkpoint: Checkpoint, kept_as: Callable[[str], str]) -> None:
        self._checkpoint = checkpoint
        self._kept_as = kept_as

    def plain(self, name: str) -> NDArray[np.float32]:
        return np.zeros(self._checkpoint.shape(name), np.float32)

    def matrix(self, name: str) -> StoredTensor:
        return StoredTensor(format_of(self._kept_as(name)), self._checkpoint.shape(name), NOTHING)


class _KernelsWithoutWeights(CpuKernels):
    """Records what `CpuKernels` do; the operations point to no weights and are not to be run."""

    def pack_linear(self, segments: Sequence[LinearSegment]) -> PackedLinear:
        weights = [segment.weight for segment in segments]
        parts = tuple(PackedPart(_format(weight), weight.shape[0], 0, NO_BIAS, 0) for weight in weights)
        return PackedLinear(NOTHING, parts, weights[0].shape[1], sum(part.num_outputs for part in parts), "F32")

    def pack_embedding(self, table: Any, *, is_head: bool) -> tuple[PackedLinear, PackedLinear | None]:
        packed = self.pack_linear([LinearSegment(weight=table)])
        return packed, packed if is_head else None

    def pack_experts(self, weights: ExpertWeights) -> PackedExperts:
        gate, up, down = (_matrices(read()) for read in (weights.read_gate, weights.read_up, weights.read_down))
        activation = activation_number(weights.activation, weights.limit)
        return PackedExperts(gate, up, down, activation, weights.limit or 0.0)


def _matrices(weight: Any) -> PackedMatrices:
    num_experts, num_outputs, num_inputs = weight.shape
    return PackedMatrices(np.empty((num_experts, 0), np.uint8), None, _format(weight), num_inputs, num_outputs)


def _format(weight: Any) -> str:
    assert isinstance(weight, StoredTensor), "there is nothing but shapes here"
    return weight.format


def _pool_without_pages(layout: KVLayout) -> KVPool:
    return KVPool(layout, (NOTHING,) * layout.num_layers)
