"""Qwen's mixture-of-experts models: Qwen 1.5 and 2 (with an expert that all tokens share) and Qwen 3.

The attention is that of the dense models; a layer has experts or one MLP, as `decoder_sparse_step` and
`mlp_only_layers` say.
"""

import msgspec

from limelight.models.experts import Experts, expert_shapes
from limelight.models.families.family import ConfigDefaults, Family, read_activation, read_sliding_layers
from limelight.models.families.qwen import read_window, with_plain_context
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
from limelight.models.spec import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, ExpertSettings, ModelSpec


def parameter_shapes(spec: ModelSpec) -> Shapes:
    """Parameters of all layers."""

    def shapes_of(layer: int) -> Shapes:
        return pre_norm_shapes(spec) | (expert_shapes(spec) if spec.has_experts(layer) else mlp_shapes(spec))

    return layered(spec, shapes_of)


def build_layer(builder: LayerBuilder) -> PreNormLayer:
    """One decoder layer."""
    has_experts = builder.spec.has_experts(builder.index)
    return PreNormLayer(builder, Attention(builder), Experts(builder) if has_experts else GatedMLP(builder))


def _refine_qwen2_moe(spec: ModelSpec, config: Fields) -> ModelSpec:
    window = read_window(config)
    last = config.integer("max_window_layers", 0, MAX_LAYERS, 28)
    # Every other layer of those below max_window_layers, unlike in the dense models.
    sliding = frozenset(range(0, min(last, spec.num_layers), 2)) if window is not None else frozenset()
    return msgspec.structs.replace(
        with_plain_context(spec, config),
        sliding_window=window,
        sliding_layers=read_sliding_layers(config, spec.num_layers, sliding),
        qkv_bias=config.flag("qkv_bias", default=True),
        activation=read_activation(config),
        experts=_experts(
            config,
            spec.num_layers,
            ExpertSettings(num_experts=60, num_per_token=4, intermediate_size=1408, shared_intermediate_size=5632),
        ),
    )


def _refine_qwen3_moe(spec: ModelSpec, config: Fields) -> ModelSpec:
    biases = config.flag("attention_bias", default=False)
    return msgspec.structs.replace(
        with_plain_context(spec, config),
        sliding_window=read_window(config),
        qkv_bias=biases,
        output_bias=biases,
        qk_norm=True,
        activation=read_activation(config),
        experts=_experts(
            config, spec.num_layers, ExpertSettings(num_experts=128, num_per_token=8, intermediate_size=768)
        ),
    )


def _experts(config: Fields, num_layers: int, defaults: ExpertSettings) -> ExpertSettings | None:
    """The experts, `defaults` filling in where the file is silent; None if no layer has any."""
    name = "num_experts" if "num_experts" in config else "num_local_experts"  # transformers 5 saves the latter
    num_experts = config.integer(name, 0, MAX_EXPERTS, defaults.num_experts)
    if num_experts == 0:
        return None
    step = config.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise config.refusal("mlp_only_layers", dense, "it must be a list of layers")
    shared = defaults.shared_intermediate_size
    if shared is not None:
        shared = config.integer("shared_expert_intermediate_size", 1, MAX_WIDTH, shared)
    usual = defaults.num_per_token if defaults.num_per_token <= num_experts else None
    return ExpertSettings(
        num_experts=num_experts,
        num_per_token=config.integer("num_experts_per_tok", 1, num_experts, usual),
        intermediate_size=config.integer("moe_intermediate_size", 1, MAX_WIDTH, defaults.intermediate_size),
        normalize=config.flag("norm_topk_prob", default=False),
        layers=frozenset(range(step - 1, num_layers, step)) - frozenset(dense),
        shared_intermediate_size=shared,
    )


QWEN2_MOE = Family(
    title="Qwen 1.5 and 2 mixture-of-experts",
    architectures=("qwen2_moe",),
    defaults=ConfigDefaults(max_position_embeddings=32768, num_kv_heads=16, eos_token_id=None, bos_token_id=None),
    refine=_refine_qwen2_moe,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
QWEN3_MOE = Family(
    title="Qwen 3 mixture-of-experts",
    architectures=("qwen3_moe",),
    defaults=ConfigDefaults(max_position_embeddings=32768, num_kv_heads=4, eos_token_id=None, bos_token_id=None),
    refine=_refine_qwen3_moe,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
