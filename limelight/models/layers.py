"""Building blocks of decoders: projections, attention with rotary positions, gated MLP, the usual order of a layer.
They own weights, never a sequence.

A `StepState` carries what all layers of one step share. Rows of a step are touched through the kernels alone, so that
a pass can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from limelight.kernels.interface import AttentionSettings, Kernels, LinearSegment, Numbers, Rows, StoredTensor
from limelight.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

Shapes = dict[str, tuple[int, ...]]
"""Names of parameters -> their shapes."""


class Parameters(Protocol):
    """Reads the parameters of a model by their names."""

    def plain(self, name: str) -> Numbers:
        """The tensor, in the dtype and on the device that the model computes in."""
        ...

    def matrix(self, name: str) -> Tensor | StoredTensor:
        """The same for matrices to multiply with, which kernels may take in other forms."""
        ...


@dataclass(frozen=True, slots=True)
class StepState:
    """What the layers of one step share: the KV pool and the kernels' own plan and rotations (opaque).

    `local_rotation` is that of sliding layers; it is `rotation` itself unless the model has rotary settings of two
    kinds.
    """

    kv: Any
    plan: Any
    rotation: Any
    local_rotation: Any
    adapters: Adapters | None = None


class Adapters(Protocol):
    """The adapters of the rows of a step."""

    def add_to(self, projection: str, outputs: Rows, inputs: Rows) -> None:
        """Add what they give for `inputs` [rows, in] to `outputs` [rows, out], in place.

        Args:
            projection: the first of its names.
        """
        ...


class ProjectionShape(NamedTuple):
    """Names of a projection's matrices (without `.weight`), the outputs of each, and the inputs that they share."""

    names: tuple[str, ...]
    widths: tuple[int, ...]
    num_inputs: int


Block = Callable[[Rows, StepState], Rows]
"""[tokens, hidden] -> [tokens, hidden]: half a layer, without its norm."""

Layer = Callable[[Rows, Rows | None, StepState], tuple[Rows, Rows]]
"""(hidden, residual, state) -> (hidden, residual), all [tokens, hidden]; their sum is what the layer gives. Residual is
None before the first layer. Writes the layer's keys and values."""


@dataclass(frozen=True, slots=True)
class LayerBuilder:
    """What a family builds layer `index` from.

    `projections` collects those that are made here: the ones that adapters can change.
    """

    spec: ModelSpec
    index: int
    parameters: Parameters
    kernels: Kernels
    projections: list[Projection] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """What the names of the layer's parameters begin with."""
        return f"model.layers.{self.index}"

    def norm(self, name: str) -> Numbers:
        """Weight of the norm `prefix.name`, ready to be multiplied with."""
        return norm_weight(self.parameters, f"{self.prefix}.{name}.weight", self.spec)

    def projection(self, names: Sequence[str], *, biases: bool) -> Projection:
        """The matrices `prefix.name` (and their biases), which share their input, packed as one product."""
        full_names = [f"{self.prefix}.{name}" for name in names]
        projection = Projection(self.kernels, self.parameters, full_names, biases=biases)
        self.projections.append(projection)
        return projection


class Projection:
    """Stored matrices that share their input, packed as one product: the outputs one beside the other. Adapters of the
    step add their own products.
    """

    def __init__(self, kernels: Kernels, parameters: Parameters, names: Sequence[str], *, biases: bool) -> None:
        """Read `name`.weight (and .bias) of each name."""
        segments = [
            LinearSegment(
                weight=parameters.matrix(f"{name}.weight"),
                bias=parameters.plain(f"{name}.bias") if biases else None,
            )
            for name in names
        ]
        self.shape = ProjectionShape(
            tuple(names), tuple(segment.weight.shape[0] for segment in segments), segments[0].weight.shape[1]
        )
        self._kernels = kernels
        self._packed = kernels.pack_linear(segments)

    def __call__(self, inputs: Rows, state: StepState) -> Rows:
        """[tokens, in] -> [tokens, sum of widths]."""
        outputs = self._kernels.linear(inputs, self._packed)
        if state.adapters is not None:
            state.adapters.add_to(self.shape.names[0], outputs, inputs)
        return outputs


class Attention:
    """Fused q, k, v projection, optional QK-norm, rotary embedding, paged attention, output projection."""

    def __init__(self, builder: LayerBuilder, *, fused: str | None = None, sinks: Numbers | None = None) -> None:
        """Read `self_attn.{q,k,v,o}_proj` of the layer, and `{q,k}_norm` if the model has them.

        Args:
            fused: name of the one matrix that a family stores for q, k and v, if it does.
            sinks: [heads], see `AttentionSettings`.
        """
        spec = builder.spec
        self._layer = builder.index
        self._kernels = builder.kernels
        self._epsilon = spec.rms_norm_epsilon
        self._is_local = spec.window(builder.index) is not None
        self._settings = AttentionSettings(
            scale=spec.scale,
            sliding_window=spec.window(builder.index),
            soft_cap=spec.attention_soft_cap,
            sinks=sinks,
        )
        names = [fused] if fused else ["q_proj", "k_proj", "v_proj"]
        self._qkv = builder.projection([f"self_attn.{name}" for name in names], biases=spec.qkv_bias)
        self._output = builder.projection(["self_attn.o_proj"], biases=spec.output_bias)
        self._q_norm = builder.norm("self_attn.q_norm") if spec.qk_norm else None
        self._k_norm = builder.norm("self_attn.k_norm") if spec.qk_norm else None

    def __call__(self, hidden: Rows, state: StepState) -> Rows:
        """[tokens, hidden] -> [tokens, hidden]; writes this layer's keys and values."""
        rotation = state.local_rotation if self._is_local else state.rotation
        qkv = self._qkv(hidden, state)
        queries = self._kernels.rotate_and_write(
            state.kv, self._layer, qkv, rotation, state.plan, self._q_norm, self._k_norm, self._epsilon
        )
        attended = self._kernels.attend(state.kv, self._layer, queries, state.plan, self._settings)
        return self._output(attended, state)


class GatedMLP:
    """down(activation(gate x) * up x) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, builder: LayerBuilder, *, fused: str | None = None, name: str = "mlp") -> None:
        """Read `name.{gate,up,down}_proj`; `fused` is the one matrix that a family stores for gate and up."""
        self._kernels = builder.kernels
        self._activation = builder.spec.activation
        biases = builder.spec.mlp_bias
        matrices = [fused] if fused else ["gate_proj", "up_proj"]
        self._gate_up = builder.projection([f"{name}.{matrix}" for matrix in matrices], biases=biases)
        self._down = builder.projection([f"{name}.down_proj"], biases=biases)

    def __call__(self, hidden: Rows, state: StepState) -> Rows:
        """[tokens, hidden] -> [tokens, hidden]."""
        return self._down(self._kernels.gate(self._gate_up(hidden, state), self._activation), state)


class PreNormLayer:
    """RMSNorm before each half of a layer, attention and then what the family has in place of an MLP."""

    def __init__(self, builder: LayerBuilder, attention: Block, mlp: Block) -> None:
        """Read `input_layernorm` and `post_attention_layernorm` of the layer."""
        self._kernels = builder.kernels
        self._epsilon = builder.spec.rms_norm_epsilon
        self._attention_norm = builder.norm("input_layernorm")
        self._attention = attention
        self._mlp_norm = builder.norm("post_attention_layernorm")
        self._mlp = mlp

    def __call__(self, hidden: Rows, residual: Rows | None, state: StepState) -> tuple[Rows, Rows]:
        """See `Layer`."""
        normed, residual = self._kernels.add_norm(hidden, residual, self._attention_norm, self._epsilon)
        hidden = self._attention(normed, state)
        normed, residual = self._kernels.add_norm(hidden, residual, self._mlp_norm, self._epsilon)
        return self._mlp(normed, state), residual


def norm_weight(parameters: Parameters, name: str, spec: ModelSpec) -> Numbers:
    """The weight `name` of a norm; in float32 where the family adds an offset, which a narrow dtype would round off."""
    weight = parameters.plain(name)
    if not spec.norm_offset:
        return weight
    return (weight if isinstance(weight, np.ndarray) else weight.float()) + spec.norm_offset


def layered(spec: ModelSpec, shapes_of: Callable[[int], Shapes]) -> Shapes:
    """The shapes that `shapes_of` gives for each layer, under their full names."""
    return {
        f"model.layers.{layer}.{name}": shape
        for layer in range(spec.num_layers)
        for name, shape in shapes_of(layer).items()
    }


def pre_norm_shapes(spec: ModelSpec) -> Shapes:
    """What `PreNormLayer` and `Attention` read of a layer."""
    hidden = spec.hidden_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for name, outputs in (("q", queries), ("k", keys), ("v", keys)):
        shapes |= matrix_shapes(f"self_attn.{name}_proj", outputs, hidden, bias=spec.qkv_bias)
    shapes |= matrix_shapes("self_attn.o_proj", hidden, queries, bias=spec.output_bias)
    if spec.qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (spec.head_dim,) for name in ("q", "k")}
    return shapes


def mlp_shapes(spec: ModelSpec) -> Shapes:
    """What `GatedMLP` reads of a layer."""
    hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
    return (
        matrix_shapes("mlp.gate_proj", inner, hidden, bias=bias)
        | matrix_shapes("mlp.up_proj", inner, hidden, bias=bias)
        | matrix_shapes("mlp.down_proj", hidden, inner, bias=bias)
    )


def matrix_shapes(name: str, outputs: int, inputs: int, *, bias: bool) -> Shapes:
    """`name`.weight, and .bias if there is one."""
    weight: Shapes = {f"{name}.weight": (outputs, inputs)}
    return weight | ({f"{name}.bias": (outputs,)} if bias else {})
