"""The Gemma family: Gemma 2 and 3, and Gemma 1, whose layers are Llama's.

Gemma 2 (arXiv 2408.00118) normalises what enters and what leaves each half of a layer, bounds logits, and lets every
other layer see a window only; Gemma 3 (arXiv 2503.19786) normalises queries and keys instead of bounding logits, and
rotates its windowed layers, five of six, with settings of their own. All multiply by 1 + w in their norms and scale
the embeddings by sqrt(hidden_size).
"""

import dataclasses
import math
import re

import msgspec

from limelight.errors import UnsupportedModel
from limelight.kernels.interface import Rows
from limelight.models.families import llama
from limelight.models.families.family import (
    ConfigDefaults,
    Family,
    all_but_every,
    read_activation,
    read_sliding_layers,
)
from limelight.models.fields import Fields
from limelight.models.layers import (
    Attention,
    GatedMLP,
    LayerBuilder,
    Shapes,
    StepState,
    layered,
    mlp_shapes,
    pre_norm_shapes,
)
from limelight.models.rope_config import stretched
from limelight.models.spec import MAX_LAYERS, MAX_POSITIONS, ModelSpec, RopeScaling, RopeSettings
from limelight.quoting import quoted

ALTERNATING = 2
FIVE_OF_SIX = 6
LOCAL_THETA = 10_000.0
GLOBAL_THETA = 1_000_000.0
WINDOW = 4096
TEXT_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
"""What transformers assumes of the text part of a multimodal Gemma 3, whose `config.json` leaves out a lot."""
OUTER_FIELDS = ("eos_token_id", "bos_token_id", "dtype", "torch_dtype")
OTHER_PARTS = re.compile(r"^(model\.)?(vision_tower|multi_modal_projector)\.")


def parameter_shapes(spec: ModelSpec) -> Shapes:
    """Parameters of all layers."""
    hidden = (spec.hidden_size,)
    norms: Shapes = {"pre_feedforward_layernorm.weight": hidden, "post_feedforward_layernorm.weight": hidden}
    return layered(spec, lambda layer: pre_norm_shapes(spec) | norms | mlp_shapes(spec))


class GemmaLayer:
    """One decoder layer: each half is normalised before and after."""

    def __init__(self, builder: LayerBuilder) -> None:
        self._kernels = builder.kernels
        self._epsilon = builder.spec.rms_norm_epsilon
        self._attention_norm = builder.norm("input_layernorm")
        self._attention = Attention(builder)
        self._attended_norm = builder.norm("post_attention_layernorm")
        self._mlp_norm = builder.norm("pre_feedforward_layernorm")
        self._mlp = GatedMLP(builder)
        self._mlp_output_norm = builder.norm("post_feedforward_layernorm")

    def __call__(self, hidden: Rows, residual: Rows | None, state: StepState) -> tuple[Rows, Rows]:
        """See `Layer`."""
        add_norm, epsilon = self._kernels.add_norm, self._epsilon
        normed, residual = add_norm(hidden, residual, self._attention_norm, epsilon)
        attended, _ = add_norm(self._attention(normed, state), None, self._attended_norm, epsilon)
        normed, residual = add_norm(attended, residual, self._mlp_norm, epsilon)
        output, _ = add_norm(self._mlp(normed, state), None, self._mlp_output_norm, epsilon)
        return output, residual


def _refine_gemma1(spec: ModelSpec, config: Fields) -> ModelSpec:
    # The first configurations say "gelu" and mean its approximation by tanh, with which the models were trained.
    activation = read_activation(config, default="gelu_pytorch_tanh")
    return _common(spec, config, "gelu_tanh" if activation == "gelu" else activation)


def _refine_gemma2(spec: ModelSpec, config: Fields) -> ModelSpec:
    spec = _windowed(spec, config, ALTERNATING)
    return msgspec.structs.replace(
        spec,
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping", 50.0),
        logits_soft_cap=_soft_cap(config, "final_logit_softcapping", 30.0),
    )


def _refine_gemma3(spec: ModelSpec, config: Fields) -> ModelSpec:
    if "attn_logit_softcapping" in config:
        raise UnsupportedModel(
            f"{config.source}: attn_logit_softcapping is {quoted(config.values['attn_logit_softcapping'])}; Gemma 3 "
            "has QK-norm instead: remove it or set it to null"
        )
    rope, local_rope = _ropes(spec, config)
    pattern = config.integer("sliding_window_pattern", 1, MAX_LAYERS, FIVE_OF_SIX)
    return msgspec.structs.replace(
        _windowed(spec, config, pattern),
        rope=rope,
        local_rope=local_rope,
        qk_norm=True,
        logits_soft_cap=_soft_cap(config, "final_logit_softcapping", None),
    )


def _refine_multimodal(spec: ModelSpec, config: Fields) -> ModelSpec:
    note = f"{config.source} describes a model that sees images; only its text part is loaded"
    return msgspec.structs.replace(_refine_gemma3(spec, config), notes=(note,))


def _common(spec: ModelSpec, config: Fields, activation: str) -> ModelSpec:
    if config.flag("use_bidirectional_attention", default=False):
        raise UnsupportedModel(
            f"{config.source}: use_bidirectional_attention is true; Limelight generates text and needs a causal model"
        )
    biases = config.flag("attention_bias", default=False)
    return msgspec.structs.replace(
        spec,
        qkv_bias=biases,
        output_bias=biases,
        norm_offset=1.0,
        embedding_scale=math.sqrt(spec.hidden_size),
        activation=activation,
    )


def _windowed(spec: ModelSpec, config: Fields, pattern: int) -> ModelSpec:
    """Gemma 2 and 3: layers that see a window, all but each `pattern`th unless `layer_types` names them."""
    layers = read_sliding_layers(config, spec.num_layers, all_but_every(pattern, spec.num_layers))
    # A query sees itself and `sliding_window` - 1 tokens before it.
    stated = "sliding_window" in config.values
    window = config.integer("sliding_window", 1, MAX_POSITIONS, None if stated else WINDOW) if layers else None
    return msgspec.structs.replace(
        _common(spec, config, read_activation(config, "hidden_activation", "gelu_pytorch_tanh")),
        attention_scale=config.number("query_pre_attn_scalar", 1e-6, 1e6, 256.0) ** -0.5,
        sliding_window=window,
        sliding_layers=layers,
    )


def _soft_cap(config: Fields, name: str, default: float | None) -> float | None:
    if name in config.values:
        return config.number(name, 1e-6, 1e6) if name in config else None
    return default


def _ropes(spec: ModelSpec, config: Fields) -> tuple[RopeSettings, RopeSettings]:
    """Rotary settings of the layers that see everything, and of those with a window.

    transformers 5 nests them in `rope_parameters` by layer type; before, `rope_theta` and `rope_scaling` were those of
    the former, and `rope_local_base_freq` all there was of the latter.
    """
    silent = Fields({}, config.source)
    nested = config.group("rope_parameters") or silent
    everything = nested.group("full_attention") or silent
    if (scaling := config.group("rope_scaling")) is not None:
        everything = Fields({**everything.values, **scaling.values}, scaling.source)
    window = nested.group("sliding_attention") or silent
    theta = config.number("rope_theta", 1.0, 1e15, GLOBAL_THETA)
    local_theta = config.number("rope_local_base_freq", 1.0, 1e15, LOCAL_THETA)
    positions = spec.max_position_embeddings
    rope = stretched(_plain(everything, theta, spec), everything, silent, positions)
    if rope.scaling is RopeScaling.LINEAR:
        # Gemma 3 counts the stretch in its max_position_embeddings.
        rope = msgspec.structs.replace(rope, original_max_position_embeddings=math.ceil(positions / rope.factor))
    return rope, stretched(_plain(window, local_theta, spec), window, silent, positions)


def _plain(group: Fields, default_theta: float, spec: ModelSpec) -> RopeSettings:
    return RopeSettings(theta=group.number("rope_theta", 1.0, 1e15, default_theta), rotary_dim=spec.head_dim)


def _text_fields(config: Fields) -> Fields:
    """The text part, with what the whole configuration says about tokens and dtype."""
    text = config.group("text_config") or Fields({}, config.source)
    outer = {name: config.values[name] for name in OUTER_FIELDS if name in config}
    return Fields({**TEXT_DEFAULTS, **text.values, **outer}, text.source)


def _text_name(stored: str) -> str | None:
    """`language_model.model.` in the files of the hub, `model.language_model.` in transformers since 4.52."""
    if OTHER_PARTS.match(stored):
        return None
    if stored.startswith("model.language_model."):
        return "model." + stored.removeprefix("model.language_model.")
    return stored.removeprefix("language_model.")


_GEMMA2_DEFAULTS = ConfigDefaults(
    max_position_embeddings=8192,
    num_kv_heads=4,
    head_dim=256,
    tie_word_embeddings=True,
    eos_token_id=1,
    bos_token_id=2,
)
GEMMA1 = Family(
    title="Gemma",
    architectures=("gemma",),
    defaults=dataclasses.replace(_GEMMA2_DEFAULTS, num_kv_heads=16),
    refine=_refine_gemma1,
    parameter_shapes=llama.parameter_shapes,
    build_layer=llama.build_layer,
)
GEMMA2 = Family(
    title="Gemma 2",
    architectures=("gemma2",),
    defaults=_GEMMA2_DEFAULTS,
    refine=_refine_gemma2,
    parameter_shapes=parameter_shapes,
    build_layer=GemmaLayer,
)
GEMMA3 = Family(
    title="Gemma 3",
    architectures=("gemma3_text",),
    defaults=dataclasses.replace(_GEMMA2_DEFAULTS, max_position_embeddings=131_072, rope_theta=GLOBAL_THETA),
    refine=_refine_gemma3,
    parameter_shapes=parameter_shapes,
    build_layer=GemmaLayer,
)
GEMMA3_TEXT_PART = dataclasses.replace(
    GEMMA3,
    title="Gemma 3 (the text part of models that see images)",
    architectures=("gemma3",),
    refine=_refine_multimodal,
    text_fields=_text_fields,
    text_name=_text_name,
)
