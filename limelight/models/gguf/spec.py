"""GGUF metadata -> `ModelSpec` and `SamplingDefaults`. The keys are those of ggml's `docs/gguf.md`."""

import math
from typing import Any

import msgspec

from limelight.errors import UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.gguf.file import GgufFile
from limelight.models.loaded_model import SamplingDefaults
from limelight.models.spec import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    MAX_WIDTH,
    ModelSpec,
    RopeScaling,
    RopeSettings,
)

ARCHITECTURES = ("llama",)
"""`general.architecture` of the files that can be run; converted Mistral models call themselves llama too."""
STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_spec(file: GgufFile, frequency_factors: tuple[float, ...] | None) -> ModelSpec:
    """The specification in a file's metadata.

    Args:
        file: an open file that has `token_embd.weight`.
        frequency_factors: content of `rope_freqs.weight`, if the file has it.

    Raises:
        CheckpointError: a value is missing or impossible.
        UnsupportedModel: the file describes something that Limelight does not run.
    """
    fields = Fields(file.metadata, str(file.path))
    _check_kind(fields)
    vocab_size = file.tensors["token_embd.weight"].shape[0]
    if vocab_size > MAX_VOCAB:
        raise fields.refusal("number of rows of token_embd.weight", vocab_size, f"it must be at most {MAX_VOCAB}")
    num_layers = fields.integer("llama.block_count", 1, MAX_LAYERS)
    hidden_size = fields.integer("llama.embedding_length", 1, MAX_WIDTH)
    num_heads = _uniform(fields, "llama.attention.head_count").integer("llama.attention.head_count", 1, MAX_HEADS)
    num_kv_heads = _uniform(fields, "llama.attention.head_count_kv").integer(
        "llama.attention.head_count_kv", 1, MAX_HEADS, num_heads
    )
    if num_heads % num_kv_heads:
        raise fields.refusal("llama.attention.head_count_kv", num_kv_heads, f"it must divide head_count ({num_heads})")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    positions = fields.integer("llama.context_length", 1, MAX_POSITIONS)
    eos = [fields.token_ids(f"tokenizer.ggml.{key}", vocab_size) for key in STOP_KEYS]
    return ModelSpec(
        architecture="llama",
        source=str(file.path),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=_uniform(fields, "llama.feed_forward_length").integer(
            "llama.feed_forward_length", 1, MAX_WIDTH
        ),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        rms_norm_epsilon=fields.number("llama.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=_rope(fields, head_dim, positions, frequency_factors),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        tie_word_embeddings="output.weight" not in file.tensors,
        sliding_window=_sliding_window(fields),
        eos_token_ids=frozenset().union(*eos),
        bos_token_id=min(fields.token_ids("tokenizer.ggml.bos_token_id", vocab_size), default=None),
        dtype=_dtype(file),
    )


def read_gguf_sampling_defaults(file: GgufFile) -> SamplingDefaults:
    """The sampling settings that the file recommends.

    Raises:
        CheckpointError: a value is out of range.
    """
    fields = Fields(file.metadata, str(file.path))

    def number(name: str, low: float, high: float) -> float | None:
        return fields.number(name, low, high) if name in fields else None

    top_k = "general.sampling.top_k"
    return SamplingDefaults(
        temperature=number("general.sampling.temp", 0.0, 2.0),
        top_p=number("general.sampling.top_p", 1e-9, 1.0),
        top_k=fields.integer(top_k, -1, MAX_VOCAB) if top_k in fields else None,
        min_p=number("general.sampling.min_p", 0.0, 1.0),
        repetition_penalty=number("general.sampling.penalty_repeat", 1e-9, 1e6),
    )


def _check_kind(fields: Fields) -> None:
    architecture = fields.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{fields.source}: general.architecture is {architecture!r}; Limelight runs GGUF files of the "
            f"architectures {', '.join(ARCHITECTURES)}"
        )
    kind = fields.text("general.type") or "model"
    if kind != "model":
        raise UnsupportedModel(f"{fields.source}: general.type is {kind!r}; Limelight runs files of the type 'model'")
    if fields.integer("split.count", 0, 2**16, 0) > 1:
        raise UnsupportedModel(
            f"{fields.source} is one part of {fields.values['split.count']}; merge them with "
            "`llama-gguf-split --merge` and give the merged file"
        )
    experts = fields.integer("llama.expert_count", 0, 2**16, 0)
    if experts:
        raise UnsupportedModel(f"{fields.source}: llama.expert_count is {experts}; Limelight runs dense models here")


def _uniform(fields: Fields, name: str) -> Fields:
    """`fields` with a per-layer list that repeats one value replaced by that value."""
    value: Any = fields.values.get(name)
    if not isinstance(value, list):
        return fields
    if len(set(map(repr, value))) != 1:
        raise UnsupportedModel(f"{fields.source}: {name} differs between layers; Limelight runs uniform layers here")
    return Fields({**fields.values, name: value[0]}, fields.source)


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    name = "llama.attention.key_length"
    if name not in fields and hidden_size % num_heads:
        raise fields.refusal(
            "llama.embedding_length", hidden_size, f"it must be a multiple of head_count ({num_heads})"
        )
    head_dim = fields.integer(name, 2, MAX_HEAD_DIM, hidden_size // num_heads)
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise fields.refusal(name, head_dim, f"it must be an even number from 2 to {MAX_HEAD_DIM}")
    for other in ("llama.attention.value_length", "llama.rope.dimension_count"):
        value = fields.integer(other, 1, MAX_HEAD_DIM, head_dim)
        if value != head_dim:
            raise UnsupportedModel(f"{fields.source}: {other} is {value}; Limelight needs the head size, {head_dim}")
    return head_dim


def _rope(fields: Fields, head_dim: int, positions: int, frequency_factors: tuple[float, ...] | None) -> RopeSettings:
    if frequency_factors is not None and not all(0.0 < factor < math.inf for factor in frequency_factors):
        raise fields.refusal("rope_freqs.weight", frequency_factors, "it must hold positive numbers")
    if frequency_factors is not None and len(frequency_factors) != head_dim // 2:
        raise fields.refusal("length of rope_freqs.weight", len(frequency_factors), f"it must be {head_dim // 2}")
    rope = RopeSettings(
        theta=fields.number("llama.rope.freq_base", 1.0, 1e15, 10_000.0),
        rotary_dim=head_dim,
        frequency_factors=frequency_factors,
    )
    kind = fields.text("llama.rope.scaling.type")
    if kind is None and "llama.rope.scale_linear" in fields:
        factor = fields.number("llama.rope.scale_linear", 1.0, 1e6)
        return msgspec.structs.replace(rope, scaling=RopeScaling.LINEAR, factor=factor)
    if kind in (None, "none"):
        return rope
    factor = fields.number("llama.rope.scaling.factor", 1.0, 1e6)
    if kind == "linear":
        return msgspec.structs.replace(rope, scaling=RopeScaling.LINEAR, factor=factor)
    if kind != "yarn":
        raise UnsupportedModel(
            f"{fields.source}: llama.rope.scaling.type is {kind!r}; Limelight knows none, linear and yarn"
        )
    # As llama.cpp does, the stated attention factor comes on top of the paper's 0.1 ln(factor) + 1.
    stated = fields.number("llama.rope.scaling.attn_factor", 1e-6, 1e6, 1.0)
    return msgspec.structs.replace(
        rope,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_max_position_embeddings=fields.integer(
            "llama.rope.scaling.original_context_length", 1, MAX_POSITIONS, positions
        ),
        beta_fast=fields.number("llama.rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32.0),
        beta_slow=fields.number("llama.rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1.0),
        attention_factor=stated * (0.1 * math.log(factor) + 1.0),
    )


def _sliding_window(fields: Fields) -> int | None:
    return fields.integer("llama.attention.sliding_window", 0, MAX_POSITIONS, 0) or None


def _dtype(file: GgufFile) -> str:
    """The float type of the format that holds most values; block formats have float16 scales."""
    values: dict[str, int] = {}
    for tensor in file.tensors.values():
        values[tensor.format.name] = values.get(tensor.format.name, 0) + math.prod(tensor.shape)
    return {"F32": "float32", "BF16": "bfloat16"}.get(max(values, key=values.__getitem__), "float16")
