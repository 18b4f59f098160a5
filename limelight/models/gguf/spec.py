"""GGUF metadata -> `ModelSpec` and `SamplingDefaults`. The keys are those of ggml's `docs/gguf.md`.

Here is what all architectures have in common; `architectures.py` has the rest.
"""

import math
from collections.abc import Mapping

from limelight.errors import UnsupportedModel
from limelight.models.families.registry import ARCHITECTURES
from limelight.models.fields import Fields
from limelight.models.gguf.architectures import GGUF_ARCHITECTURES, Architecture
from limelight.models.gguf.file import GgufTensor
from limelight.models.gguf.metadata import Metadata
from limelight.models.gguf.rope import Factors, read_gguf_rope
from limelight.models.loaded_model import SamplingDefaults
from limelight.models.spec import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    MAX_WIDTH,
    MIN_POSITIONS,
    ModelSpec,
)
from limelight.models.text.sentencepiece_bpe import TokenKind
from limelight.quoting import quoted

STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
TURN_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|return|>", "<|call|>"})
"""Control tokens that end a turn in the chat formats of known families: files seldom have `eot_token_id`."""
NEUTRAL = {
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "embedding_scale": 1.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
}
"""Keys of other architectures (Granite, MPT, Command R) -> the value that changes nothing; 0 means absent, too."""


def read_gguf_architecture(fields: Fields) -> Architecture:
    """The architecture of a file.

    Raises:
        CheckpointError: a value has the wrong type.
        UnsupportedModel: the file is of another kind, or of an architecture that Limelight does not run.
    """
    name = fields.text("general.architecture")
    runnable = [known for known, entry in GGUF_ARCHITECTURES.items() if entry.family in ARCHITECTURES]
    if name not in runnable:
        raise UnsupportedModel(
            f"{fields.source}: general.architecture is {quoted(name)}; Limelight runs GGUF files of the "
            f"architectures {', '.join(runnable)}"
        )
    kind = fields.text("general.type") or "model"
    if kind != "model":
        raise UnsupportedModel(
            f"{fields.source}: general.type is {quoted(kind)}; Limelight runs files of the type 'model'"
        )
    return GGUF_ARCHITECTURES[name]


def read_gguf_spec(fields: Fields, tensors: Mapping[str, GgufTensor], factors: Mapping[str, Factors]) -> ModelSpec:
    """The specification in a file's metadata.

    Args:
        fields: the metadata.
        tensors: of the file; `token_embd.weight` is among them.
        factors: content of those of `rope.FACTOR_TENSORS` that the file has.

    Raises:
        CheckpointError: a value is missing or impossible.
        UnsupportedModel: the file describes something that Limelight does not run.
    """
    architecture = read_gguf_architecture(fields)
    metadata = Metadata(fields, fields.values["general.architecture"])
    _refuse_other_layers(metadata)
    vocab_size = tensors["token_embd.weight"].shape[0]
    if vocab_size > MAX_VOCAB:
        raise fields.refusal("number of rows of token_embd.weight", vocab_size, f"it must be at most {MAX_VOCAB}")
    hidden_size = metadata.integer("embedding_length", 1, MAX_WIDTH)
    num_heads = metadata.integer("attention.head_count", 1, MAX_HEADS)
    num_kv_heads = metadata.integer("attention.head_count_kv", 1, MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise metadata.refusal("attention.head_count_kv", num_kv_heads, f"it must divide head_count ({num_heads})")
    head_dim = _head_dim(metadata, hidden_size, num_heads)
    positions = metadata.integer("context_length", MIN_POSITIONS, MAX_POSITIONS)
    rotary_dim = _rotary_dim(metadata, head_dim, partial=architecture.partial_rotary)
    common = ModelSpec(
        architecture=architecture.family,
        source=fields.source,
        num_layers=metadata.integer("block_count", 1, MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(metadata),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        rms_norm_epsilon=metadata.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=read_gguf_rope(metadata, rotary_dim, positions, factors),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        tie_word_embeddings="output.weight" not in tensors,
        eos_token_ids=_ends(fields, vocab_size),
        bos_token_id=min(fields.token_ids("tokenizer.ggml.bos_token_id", vocab_size), default=None),
        dtype=_dtype(tensors),
    )
    return architecture.refine(common, metadata)


def read_gguf_sampling_defaults(fields: Fields) -> SamplingDefaults:
    """The sampling settings that the file recommends.

    Raises:
        CheckpointError: a value is out of range.
    """

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


def _refuse_other_layers(metadata: Metadata) -> None:
    """What the layers of these families do not do must not be left out in silence.

    Raises:
        CheckpointError: a value of another type.
        UnsupportedModel: the file asks for it.
    """
    if not metadata.flag("attention.causal", default=True):
        raise UnsupportedModel(
            f"{metadata.source}: {metadata.key('attention.causal')} is false; Limelight generates text and needs a "
            "causal model"
        )
    for name, neutral in NEUTRAL.items():
        value = metadata.number(name, -1e9, 1e9, neutral)
        if value not in (0.0, neutral):
            raise UnsupportedModel(
                f"{metadata.source}: {metadata.key(name)} is {value}; Limelight's layers of this architecture do not "
                "apply it: use the model's folder with its config.json"
            )


def _head_dim(metadata: Metadata, hidden_size: int, num_heads: int) -> int:
    name = "attention.key_length"
    if name not in metadata and hidden_size % num_heads:
        raise metadata.refusal("embedding_length", hidden_size, f"it must be a multiple of head_count ({num_heads})")
    head_dim = metadata.integer(name, 2, MAX_HEAD_DIM, hidden_size // num_heads)
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise metadata.refusal(name, head_dim, f"it must be an even number from 2 to {MAX_HEAD_DIM}")
    values = metadata.integer("attention.value_length", 1, MAX_HEAD_DIM, head_dim)
    if values != head_dim:
        raise UnsupportedModel(
            f"{metadata.source}: {metadata.key('attention.value_length')} is {values}; "
            f"Limelight needs values as long as keys, {head_dim}"
        )
    return head_dim


def _rotary_dim(metadata: Metadata, head_dim: int, *, partial: bool) -> int:
    name = "rope.dimension_count"
    rotary_dim = metadata.integer(name, 1, MAX_HEAD_DIM, head_dim)
    if partial and (rotary_dim > head_dim or rotary_dim % 2):
        raise metadata.refusal(name, rotary_dim, f"it must be an even number up to the head size, {head_dim}")
    if not partial and rotary_dim != head_dim:
        raise UnsupportedModel(
            f"{metadata.source}: {metadata.key(name)} is {rotary_dim}; Limelight needs the head size, {head_dim}"
        )
    return rotary_dim


def _intermediate_size(metadata: Metadata) -> int:
    """Of a dense layer; files of models that have experts everywhere may leave it out, or state 0."""
    of_experts = metadata.integer("expert_feed_forward_length", 1, MAX_WIDTH, 0)
    if of_experts:
        return metadata.integer("feed_forward_length", 0, MAX_WIDTH, 0) or of_experts
    return metadata.integer("feed_forward_length", 1, MAX_WIDTH)


def _ends(fields: Fields, vocab_size: int) -> frozenset[int]:
    """Ids that end a generation: stated ones, and control tokens that end a turn by their name."""
    stated = [fields.token_ids(f"tokenizer.ggml.{key}", vocab_size) for key in STOP_KEYS]
    tokens, kinds = (fields.values.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    named: dict[str, int] = {}
    if isinstance(tokens, list) and isinstance(kinds, list):
        named = {
            token: token_id
            for token_id, (token, kind) in enumerate(zip(tokens[:vocab_size], kinds, strict=False))
            if kind == TokenKind.CONTROL and isinstance(token, str) and token in TURN_ENDS
        }
    if "<|return|>" in named:
        # In gpt-oss's format, <|end|> is only the end of a message, after which another one follows.
        named.pop("<|end|>", None)
    return frozenset().union(named.values(), *stated)


def _dtype(tensors: Mapping[str, GgufTensor]) -> str:
    """The float type of the format that holds most values; block formats have float16 scales."""
    values: dict[str, int] = {}
    for tensor in tensors.values():
        values[tensor.format.name] = values.get(tensor.format.name, 0) + math.prod(tensor.shape)
    return {"F32": "float32", "BF16": "bfloat16"}.get(max(values, key=values.__getitem__), "float16")
