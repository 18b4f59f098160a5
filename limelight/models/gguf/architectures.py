"""The architectures of GGUF files: which family each belongs to, what its tensors are called, and the settings that are
its own. What they have in common is in `spec.py`.

The keys' meaning and the defaults for absent ones are those of llama.cpp, which the files are made for; where its
reader leaves out something that the original model has, the model counts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from limelight.errors import UnsupportedModel
from limelight.models.families.family import all_but_every
from limelight.models.gguf.metadata import Metadata
from limelight.models.gguf.tensor_names import EXPERTS, GEMMA, GPT_OSS, PHI, SHARED_EXPERT
from limelight.models.spec import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_WIDTH,
    ExpertSettings,
    ModelSpec,
    RopeSettings,
)

Refine = Callable[[ModelSpec, Metadata], ModelSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One value of `general.architecture`.

    Attributes:
        family: the architecture in `families/registry.py`.
        refine: (what all have in common, the file's metadata) -> the model's specification.
        names: names of tensors within a layer that differ from `tensor_names.LAYER`.
        interleaved: rows of query and key projections are interleaved within each head.
        partial_rotary: only the leading dimensions of a head may be rotated.
    """

    family: str
    refine: Refine
    names: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False
    partial_rotary: bool = False


def _llama(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    return msgspec.structs.replace(_dense(spec, metadata), sliding_window=_window(metadata))


def _qwen2(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    return msgspec.structs.replace(_dense(spec, metadata), qkv_bias=True)


def _qwen3(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    return msgspec.structs.replace(_dense(spec, metadata), qk_norm=True)


def _qwen2_moe(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    experts = msgspec.structs.replace(
        _experts(spec, metadata, normalize=False),
        shared_intermediate_size=metadata.integer(
            "expert_shared_feed_forward_length", 1, MAX_WIDTH, spec.intermediate_size
        ),
    )
    return msgspec.structs.replace(spec, qkv_bias=True, experts=experts)


def _qwen3_moe(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    return msgspec.structs.replace(spec, qk_norm=True, experts=_experts(spec, metadata, normalize=True))


def _gemma1(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    """Converters add 1 to the weights of norms, so `norm_offset` stays 0."""
    return msgspec.structs.replace(
        _dense(spec, metadata),
        activation="gelu_tanh",
        embedding_scale=math.sqrt(spec.hidden_size),
        # Gemma's activations outgrow float16.
        dtype="bfloat16" if spec.dtype == "float16" else spec.dtype,
    )


def _gemma2(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    return msgspec.structs.replace(
        _gemma1(spec, metadata),
        attention_soft_cap=metadata.number("attn_logit_softcapping", 0.0, 1e6, 50.0) or None,
        logits_soft_cap=metadata.number("final_logit_softcapping", 0.0, 1e6, 30.0) or None,
        attention_scale=_gemma_scale(spec, layers_of_27b=46),
        sliding_window=metadata.integer("attention.sliding_window", 1, MAX_POSITIONS, 4096),
        sliding_layers=_sliding_layers(spec, metadata, 2),
    )


def _gemma3(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    window = _window(metadata)
    # Windowed layers are rotated without any stretch, which context_length counts in already.
    local_theta = metadata.number("rope.freq_base_swa", 1.0, 1e15, 10_000.0)
    original = math.ceil(spec.max_position_embeddings / spec.rope.factor)
    return msgspec.structs.replace(
        _gemma1(spec, metadata),
        qk_norm=True,
        logits_soft_cap=metadata.number("final_logit_softcapping", 0.0, 1e6, 0.0) or None,
        attention_scale=_gemma_scale(spec, layers_of_27b=62),
        sliding_window=window,
        sliding_layers=frozenset() if window is None else _sliding_layers(spec, metadata, 6),
        rope=msgspec.structs.replace(spec.rope, original_max_position_embeddings=original)
        if spec.rope.factor > 1.0
        else spec.rope,
        local_rope=RopeSettings(theta=local_theta, rotary_dim=spec.rope.rotary_dim),
    )


def _phi3(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    return msgspec.structs.replace(_dense(spec, metadata), sliding_window=_window(metadata))


def _gpt_oss(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    # OpenAI's code does not round the bounds of yarn's blend, and clamps at 7; no key says either.
    return msgspec.structs.replace(
        spec,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        attention_sinks=True,
        gate_limit=7.0,
        sliding_window=metadata.integer("attention.sliding_window", 1, MAX_POSITIONS, 128),
        sliding_layers=_sliding_layers(spec, metadata, 2),
        experts=_experts(spec, metadata, normalize=True),
        rope=msgspec.structs.replace(spec.rope, truncate=False),
        dtype="bfloat16" if spec.dtype == "float16" else spec.dtype,
    )


GGUF_ARCHITECTURES = {
    "llama": Architecture(family="llama", refine=_llama, interleaved=True),
    "qwen2": Architecture(family="qwen2", refine=_qwen2),
    "qwen2moe": Architecture(family="qwen2_moe", refine=_qwen2_moe, names=EXPERTS | SHARED_EXPERT),
    "qwen3": Architecture(family="qwen3", refine=_qwen3),
    "qwen3moe": Architecture(family="qwen3_moe", refine=_qwen3_moe, names=EXPERTS),
    "gemma": Architecture(family="gemma", refine=_gemma1),
    "gemma2": Architecture(family="gemma2", refine=_gemma2, names=GEMMA),
    "gemma3": Architecture(family="gemma3_text", refine=_gemma3, names=GEMMA),
    "phi3": Architecture(family="phi3", refine=_phi3, names=PHI, partial_rotary=True),
    "gpt-oss": Architecture(family="gpt_oss", refine=_gpt_oss, names=GPT_OSS),
}
"""By `general.architecture`. Converted Mistral models call themselves llama too."""


def _dense(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    """`spec`, if the file has no experts."""
    num_experts = metadata.integer("expert_count", 0, MAX_EXPERTS, 0)
    if num_experts:
        raise UnsupportedModel(
            f"{metadata.source}: {metadata.key('expert_count')} is {num_experts}; "
            "Limelight runs dense models of this architecture (Mixtral, for one, is not among them)"
        )
    return spec


def _experts(spec: ModelSpec, metadata: Metadata, *, normalize: bool) -> ExpertSettings:
    num_experts = metadata.integer("expert_count", 1, MAX_EXPERTS)
    return ExpertSettings(
        num_experts=num_experts,
        num_per_token=metadata.integer("expert_used_count", 1, num_experts),
        intermediate_size=metadata.integer("expert_feed_forward_length", 1, MAX_WIDTH, spec.intermediate_size),
        normalize=metadata.flag("expert_weights_norm", default=normalize),
    )


def _window(metadata: Metadata) -> int | None:
    return metadata.integer("attention.sliding_window", 0, MAX_POSITIONS, 0) or None


def _sliding_layers(spec: ModelSpec, metadata: Metadata, period: int) -> frozenset[int]:
    """All but each `period`th layer, unless the file states another period, or each layer by itself.

    Raises:
        CheckpointError: the list is not one truth value for each layer.
    """
    name = "attention.sliding_window_pattern"
    stated = metadata.value(name)
    if isinstance(stated, list):
        if len(stated) != spec.num_layers or not all(isinstance(slides, bool) for slides in stated):
            raise metadata.refusal(
                name, stated, f"a list must hold one truth value for each of {spec.num_layers} layers"
            )
        return frozenset(layer for layer, slides in enumerate(stated) if slides)
    return all_but_every(metadata.integer(name, 1, MAX_LAYERS, period), spec.num_layers)


def _gemma_scale(spec: ModelSpec, layers_of_27b: int) -> float:
    """The 27B models, known by their layers, scale by a head's share of the hidden size, the others by its own size."""
    size = spec.hidden_size / spec.num_heads if spec.num_layers == layers_of_27b else spec.head_dim
    return float(size**-0.5)
