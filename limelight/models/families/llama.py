"""The Llama family: Llama 2 and 3, SmolLM, TinyLlama; and Mistral, which is the same with an optional sliding window.

Grouped heads, rotary positions, RMSNorm before each half of a layer, a gated MLP (Touvron et al. 2023, arXiv
2302.13971).
"""

import msgspec
from torch import Tensor

from limelight.models.families.family import ConfigDefaults, Family, read_activation
from limelight.models.fields import Fields
from limelight.models.layers import Attention, GatedMLP, LayerBuilder, StepState
from limelight.models.spec import MAX_POSITIONS, ModelSpec


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Parameters of all layers."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    projections = {
        "self_attn.q_proj": (queries, hidden, spec.qkv_bias),
        "self_attn.k_proj": (keys, hidden, spec.qkv_bias),
        "self_attn.v_proj": (keys, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, queries, spec.output_bias),
        "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for name, (outputs, inputs, has_bias) in projections.items():
            shapes[f"{prefix}.{name}.weight"] = (outputs, inputs)
            if has_bias:
                shapes[f"{prefix}.{name}.bias"] = (outputs,)
    return shapes


class LlamaLayer:
    """One decoder layer."""

    def __init__(self, builder: LayerBuilder) -> None:
        self._kernels = builder.kernels
        self._epsilon = builder.spec.rms_norm_epsilon
        self._attention_norm = builder.norm("input_layernorm")
        self._attention = Attention(builder)
        self._mlp_norm = builder.norm("post_attention_layernorm")
        self._mlp = GatedMLP(builder)

    def __call__(self, hidden: Tensor, residual: Tensor | None, state: StepState) -> tuple[Tensor, Tensor]:
        """See `Layer`."""
        normed, residual = self._kernels.add_norm(hidden, residual, self._attention_norm, self._epsilon)
        hidden = self._attention(normed, state)
        normed, residual = self._kernels.add_norm(hidden, residual, self._mlp_norm, self._epsilon)
        return self._mlp(normed, state), residual


def _refine_llama(spec: ModelSpec, config: Fields) -> ModelSpec:
    biases = config.flag("attention_bias", default=False)
    return msgspec.structs.replace(
        spec,
        qkv_bias=biases,
        output_bias=biases,
        mlp_bias=config.flag("mlp_bias", default=False),
        activation=read_activation(config),
    )


def _refine_mistral(spec: ModelSpec, config: Fields) -> ModelSpec:
    window: int | None = 4096
    if "sliding_window" in config.values:
        window = config.integer("sliding_window", 1, MAX_POSITIONS) if "sliding_window" in config else None
    return msgspec.structs.replace(spec, sliding_window=window, activation=read_activation(config))


LLAMA = Family(
    title="Llama",
    architectures=("llama",),
    defaults=ConfigDefaults(max_position_embeddings=2048),
    refine=_refine_llama,
    parameter_shapes=parameter_shapes,
    build_layer=LlamaLayer,
)
MISTRAL = Family(
    title="Mistral",
    architectures=("mistral",),
    defaults=ConfigDefaults(max_position_embeddings=4096 * 32, num_kv_heads=8),
    refine=_refine_mistral,
    parameter_shapes=parameter_shapes,
    build_layer=LlamaLayer,
)
