"""gpt-oss: experts in every layer behind a clamped gate, biases everywhere, sinks in the attention, and every other
layer sliding (OpenAI 2025, arXiv 2508.10925).
"""

import msgspec

from limelight.errors import UnsupportedModel
from limelight.models.experts import Experts, expert_shapes
from limelight.models.families.family import (
    ConfigDefaults,
    Family,
    all_but_every,
    read_activation,
    read_sliding_layers,
    read_sliding_window,
)
from limelight.models.fields import Fields
from limelight.models.layers import Attention, LayerBuilder, PreNormLayer, Shapes, layered, pre_norm_shapes
from limelight.models.rope_config import read_rope
from limelight.models.spec import MAX_EXPERTS, ExpertSettings, ModelSpec, RopeSettings

ROUTER = "mlp.router"
SINKS = "self_attn.sinks"
GATE_SLOPE = 1.702
"""What the kernels' clamped gate multiplies with inside the sigmoid."""
ROPE_THETA = 150_000.0
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Where `config.json` is silent."""


def parameter_shapes(spec: ModelSpec) -> Shapes:
    """Parameters of all layers."""
    return layered(spec, lambda layer: pre_norm_shapes(spec) | {SINKS: (spec.num_heads,)} | expert_shapes(spec, ROUTER))


def build_layer(builder: LayerBuilder) -> PreNormLayer:
    """One decoder layer."""
    sinks = builder.parameters.plain(f"{builder.prefix}.{SINKS}")
    experts = Experts(builder, router=ROUTER, chosen_first=True)
    return PreNormLayer(builder, Attention(builder, sinks=sinks), experts)


def _refine(spec: ModelSpec, config: Fields) -> ModelSpec:
    slope = config.number("swiglu_alpha", 0.0, 1e3, GATE_SLOPE)
    if slope != GATE_SLOPE:
        raise UnsupportedModel(f"{config.source}: swiglu_alpha is {slope}; Limelight runs {GATE_SLOPE}")
    biases = config.flag("attention_bias", default=True)
    return msgspec.structs.replace(
        spec,
        rope=_rope(spec, config),
        qkv_bias=biases,
        output_bias=biases,
        mlp_bias=True,
        attention_sinks=True,
        sliding_window=read_sliding_window(config, 128),
        sliding_layers=read_sliding_layers(config, spec.num_layers, all_but_every(2, spec.num_layers)),
        activation=read_activation(config),
        gate_limit=config.number("swiglu_limit", 1e-6, 1e6, 7.0),
        experts=_experts(spec, config),
    )


def _experts(spec: ModelSpec, config: Fields) -> ExpertSettings:
    name = "num_experts" if "num_experts" in config else "num_local_experts"
    num_experts = config.integer(name, 1, MAX_EXPERTS, 128)
    return ExpertSettings(
        num_experts=num_experts,
        num_per_token=config.integer("num_experts_per_tok", 1, num_experts, min(4, num_experts)),
        intermediate_size=spec.intermediate_size,
    )


def _rope(spec: ModelSpec, config: Fields) -> RopeSettings:
    if config.group("rope_scaling") is not None or config.group("rope_parameters") is not None:
        return spec.rope
    usual = Fields({**config.values, "rope_scaling": ROPE}, config.source)
    return read_rope(usual, spec.head_dim, spec.max_position_embeddings, default_theta=ROPE_THETA)


GPT_OSS = Family(
    title="gpt-oss",
    architectures=("gpt_oss",),
    defaults=ConfigDefaults(
        max_position_embeddings=131072,
        num_kv_heads=8,
        head_dim=64,
        rms_norm_epsilon=1e-5,
        rope_theta=ROPE_THETA,
        eos_token_id=None,
        bos_token_id=None,
    ),
    refine=_refine,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
