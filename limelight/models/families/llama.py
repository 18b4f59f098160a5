"""The Llama family: Llama 2 and 3, SmolLM, TinyLlama; and Mistral, which is the same with an optional sliding window.

Grouped heads, rotary positions, RMSNorm before each half of a layer, a gated MLP (Touvron et al. 2023, arXiv
2302.13971).
"""

import msgspec

from limelight.models.families.family import ConfigDefaults, Family, read_activation, read_sliding_window
from limelight.models.fields import Fields
from limelight.models.layers import (
    Attention,
    GatedMLP,
    LayerBuilder,
    PreNormLayer,
    Shapes,
    layered,
    mlp_shapes,
    pre_norm_shapes,
)
from limelight.models.spec import ModelSpec


def parameter_shapes(spec: ModelSpec) -> Shapes:
    """Parameters of all layers."""
    return layered(spec, lambda layer: pre_norm_shapes(spec) | mlp_shapes(spec))


def build_layer(builder: LayerBuilder) -> PreNormLayer:
    """One decoder layer."""
    return PreNormLayer(builder, Attention(builder), GatedMLP(builder))


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
    return msgspec.structs.replace(
        spec, sliding_window=read_sliding_window(config, 4096), activation=read_activation(config)
    )


LLAMA = Family(
    title="Llama",
    architectures=("llama",),
    defaults=ConfigDefaults(max_position_embeddings=2048),
    refine=_refine_llama,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
MISTRAL = Family(
    title="Mistral",
    architectures=("mistral",),
    defaults=ConfigDefaults(max_position_embeddings=4096 * 32, num_kv_heads=8),
    refine=_refine_mistral,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
