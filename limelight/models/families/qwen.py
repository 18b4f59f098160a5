"""The Qwen family: Qwen 2 and 2.5 (biases on queries, keys and values) and Qwen 3 (norms on the queries and keys).

Llama's layer otherwise. Layers from `max_window_layers` on may slide, if `use_sliding_window` says so (Yang et al.
2024, arXiv 2407.10671; 2025, arXiv 2505.09388).
"""

import msgspec

from limelight.models.families.family import (
    ConfigDefaults,
    Family,
    read_activation,
    read_sliding_layers,
    read_sliding_window,
)
from limelight.models.families.llama import build_layer, parameter_shapes
from limelight.models.fields import Fields
from limelight.models.spec import MAX_LAYERS, MAX_POSITIONS, MIN_POSITIONS, ModelSpec


def with_plain_context(spec: ModelSpec, config: Fields) -> ModelSpec:
    """The context that plain attention serves.

    The models for a million tokens count on dual chunk attention (An et al. 2024, arXiv 2402.17463), which keeps the
    distances between tokens within those that were trained. Attention is plain up to there, and not run beyond.
    """
    chunks = config.group("dual_chunk_attention_config")
    if chunks is None:
        return spec
    trained = chunks.integer("original_max_position_embeddings", MIN_POSITIONS, MAX_POSITIONS)
    if trained >= spec.max_position_embeddings:
        return spec
    note = (
        f"the context is {trained:,} tokens instead of {spec.max_position_embeddings:,}: beyond that, the model needs "
        "dual chunk attention, which Limelight does not do"
    )
    return msgspec.structs.replace(spec, max_position_embeddings=trained, notes=(*spec.notes, note))


def _with_window(spec: ModelSpec, config: Fields) -> ModelSpec:
    """Qwen's sliding window: stated in every `config.json`, and mostly not in use."""
    spec = with_plain_context(spec, config)
    window = read_window(config)
    first = config.integer("max_window_layers", 0, MAX_LAYERS, 28)
    sliding = frozenset(range(first, spec.num_layers)) if window is not None else frozenset()
    sliding = read_sliding_layers(config, spec.num_layers, sliding)
    return msgspec.structs.replace(spec, sliding_window=window, sliding_layers=sliding)


def read_window(config: Fields) -> int | None:
    """Tokens that the queries of sliding layers see, or None where no layer slides."""
    if not config.flag("use_sliding_window", default=False):
        return None
    return read_sliding_window(config, 4096)


def _refine_qwen2(spec: ModelSpec, config: Fields) -> ModelSpec:
    return msgspec.structs.replace(_with_window(spec, config), qkv_bias=True, activation=read_activation(config))


def _refine_qwen3(spec: ModelSpec, config: Fields) -> ModelSpec:
    biases = config.flag("attention_bias", default=False)
    return msgspec.structs.replace(
        _with_window(spec, config),
        qkv_bias=biases,
        output_bias=biases,
        qk_norm=True,
        activation=read_activation(config),
    )


QWEN2 = Family(
    title="Qwen 2, Qwen 2.5",
    architectures=("qwen2",),
    defaults=ConfigDefaults(max_position_embeddings=32768, num_kv_heads=32, eos_token_id=None, bos_token_id=None),
    refine=_refine_qwen2,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
QWEN3 = Family(
    title="Qwen 3",
    architectures=("qwen3",),
    defaults=ConfigDefaults(
        max_position_embeddings=32768, num_kv_heads=32, head_dim=128, eos_token_id=None, bos_token_id=None
    ),
    refine=_refine_qwen3,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
