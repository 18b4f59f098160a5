"""Building blocks of decoders: attention with rotary positions, and the gated MLP. They own weights, never a sequence.

A `StepState` carries what all layers of one step share; every kernel is called through it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from limelight.kernels.interface import AttentionSettings, Kernels, LinearSegment

ReadTensor = Callable[[str], Tensor]
"""Name of a parameter -> the tensor, in the dtype and on the device that the model runs in."""


@dataclass(frozen=True, slots=True)
class StepState:
    """What the layers of one step share: the KV pool and the kernels' own plan and rotation (opaque)."""

    kv: Any
    plan: Any
    rotation: Any


class Attention:
    """Fused q, k, v projection, rotary embedding, paged attention, output projection."""

    def __init__(
        self, layer: int, prefix: str, read: ReadTensor, kernels: Kernels, settings: AttentionSettings, *, biases: bool
    ) -> None:
        """Read `prefix`.{q,k,v,o}_proj; `layer` is the index of this layer's keys and values in the pool."""
        self._layer = layer
        self._kernels = kernels
        self._settings = settings
        self._qkv = projection(kernels, read, [f"{prefix}.{part}_proj" for part in "qkv"], biases=biases)
        self._output = projection(kernels, read, [f"{prefix}.o_proj"], biases=biases)

    def __call__(self, hidden: Tensor, state: StepState) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; writes this layer's keys and values."""
        qkv = self._kernels.linear(hidden, self._qkv)
        queries = self._kernels.rotate_and_write(
            state.kv, self._layer, qkv, state.rotation, state.plan, None, None, 0.0
        )
        attended = self._kernels.attend(state.kv, self._layer, queries, state.plan, self._settings)
        return self._kernels.linear(attended, self._output)


class GatedMLP:
    """down(SiLU(gate x) * up x) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, prefix: str, read: ReadTensor, kernels: Kernels, *, biases: bool) -> None:
        """Read `prefix`.{gate,up,down}_proj."""
        self._kernels = kernels
        self._gate_up = projection(kernels, read, [f"{prefix}.gate_proj", f"{prefix}.up_proj"], biases=biases)
        self._down = projection(kernels, read, [f"{prefix}.down_proj"], biases=biases)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        return self._kernels.linear(self._kernels.gate(self._kernels.linear(hidden, self._gate_up)), self._down)


def projection(kernels: Kernels, read: ReadTensor, names: Sequence[str], *, biases: bool) -> Any:
    """Stored matrices `name`.weight (and .bias) that share their input, packed as one product."""
    return kernels.pack_linear(
        [LinearSegment(weight=read(f"{name}.weight"), bias=read(f"{name}.bias") if biases else None) for name in names]
    )
