"""`config.json` and `generation_config.json` of a Hugging Face folder -> `ModelSpec` and `SamplingDefaults`.

Reads the layouts of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5 (`rope_parameters`, `dtype`).
Defaults of absent fields are those of transformers' configuration class of the family.
"""

import math
from pathlib import Path

import msgspec

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields, read_json_object
from limelight.models.loaded_model import SamplingDefaults
from limelight.models.spec import ARCHITECTURES, ModelSpec, RopeScaling, RopeSettings

DTYPES = ("float32", "bfloat16", "float16")
MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_WIDTH = 2**20
MAX_VOCAB = 2**23
MAX_POSITIONS = 2**31 - 1


class FamilyDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What transformers assumes of a family where `config.json` is silent.

    `has_sliding_window` and `has_biases` say whether its model code looks at those fields at all.
    """

    max_position_embeddings: int
    num_kv_heads: int | None
    has_sliding_window: bool
    has_biases: bool


FAMILIES = {
    "llama": FamilyDefaults(max_position_embeddings=2048, num_kv_heads=None, has_sliding_window=False, has_biases=True),
    "mistral": FamilyDefaults(
        max_position_embeddings=4096 * 32, num_kv_heads=8, has_sliding_window=True, has_biases=False
    ),
}


def read_spec(folder: Path, stored_dtype: str = "float32") -> ModelSpec:
    """The specification of the model in `folder`.

    Args:
        folder: the model's folder.
        stored_dtype: what the weights turn out to be stored in, used where `config.json` does not say.

    Raises:
        CheckpointError: `config.json` or `generation_config.json` is missing, corrupt or impossible.
        UnsupportedModel: it describes something that Limelight does not run.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no config.json; a model folder needs one, beside its *.safetensors files")
    config = Fields(read_json_object(path), str(path))
    architecture = _architecture(config)
    family = FAMILIES[architecture]

    hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    num_kv_heads = _num_kv_heads(config, num_heads, family)
    head_dim = _head_dim(config, hidden_size, num_heads)
    vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
    positions = config.integer("max_position_embeddings", 1, MAX_POSITIONS, family.max_position_embeddings)
    generation = _generation_fields(folder)
    return ModelSpec(
        architecture=architecture,
        source=str(path),
        num_layers=config.integer("num_hidden_layers", 1, MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", 1, MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        rms_norm_epsilon=config.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=_rope(config, head_dim, positions),
        attention_bias=family.has_biases and config.flag("attention_bias", default=False),
        mlp_bias=family.has_biases and config.flag("mlp_bias", default=False),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        sliding_window=_sliding_window(config, family),
        activation=_activation(config),
        eos_token_ids=_token_ids(config, "eos_token_id", vocab_size, default=2)
        | generation.token_ids("eos_token_id", vocab_size),
        bos_token_id=min(_token_ids(config, "bos_token_id", vocab_size, default=1), default=None),
        dtype=_dtype(config) or stored_dtype,
    )


def read_sampling_defaults(folder: Path) -> SamplingDefaults:
    """The sampling settings that `generation_config.json` recommends; empty without that file.

    `do_sample: false` (transformers' own default) with a temperature set is taken at its word: the temperature counts.

    Raises:
        CheckpointError: a value is out of range.
    """
    fields = _generation_fields(folder)

    def number(name: str, low: float, high: float) -> float | None:
        return fields.number(name, low, high) if name in fields else None

    return SamplingDefaults(
        temperature=number("temperature", 0.0, 2.0),
        top_p=number("top_p", 1e-9, 1.0),
        top_k=fields.integer("top_k", -1, MAX_VOCAB) if "top_k" in fields else None,
        min_p=number("min_p", 0.0, 1.0),
        repetition_penalty=number("repetition_penalty", 1e-9, 1e6),
        max_tokens=fields.integer("max_new_tokens", 1, MAX_POSITIONS) if "max_new_tokens" in fields else None,
    )


def _generation_fields(folder: Path) -> Fields:
    path = folder / "generation_config.json"
    return Fields(read_json_object(path) if path.is_file() else {}, str(path))


def _architecture(config: Fields) -> str:
    model_type = config.text("model_type")
    classes = config.values.get("architectures") or []
    if model_type not in FAMILIES:
        described = repr(model_type) if model_type is not None else f"missing (architectures: {classes!r})"
        raise UnsupportedModel(
            f"{config.source}: model_type is {described}; Limelight runs the architectures {', '.join(ARCHITECTURES)}"
        )
    if isinstance(classes, list) and classes and not any(str(name).endswith("ForCausalLM") for name in classes):
        raise UnsupportedModel(
            f"{config.source}: architectures is {classes!r}; Limelight generates text and needs a ...ForCausalLM model"
        )
    if "quantization_config" in config:
        method = config.group("quantization_config")
        name = method.values.get("quant_method") if method else None
        raise UnsupportedModel(
            f"{config.source}: the weights are quantised with {name!r}; use the unquantised repository or a GGUF file"
        )
    return model_type


def _num_kv_heads(config: Fields, num_heads: int, family: FamilyDefaults) -> int:
    if "num_key_value_heads" not in config.values and family.num_kv_heads is not None:
        num_kv_heads = family.num_kv_heads
    else:
        num_kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise config.refusal(
            "num_key_value_heads", num_kv_heads, f"it must divide num_attention_heads, which is {num_heads}"
        )
    return num_kv_heads


def _head_dim(config: Fields, hidden_size: int, num_heads: int) -> int:
    if "head_dim" not in config and hidden_size % num_heads:
        raise config.refusal(
            "hidden_size", hidden_size, f"without head_dim, it must be a multiple of num_attention_heads ({num_heads})"
        )
    head_dim = config.integer("head_dim", 2, MAX_HEAD_DIM, hidden_size // num_heads)
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise config.refusal("head_dim", head_dim, f"it must be an even number from 2 to {MAX_HEAD_DIM}")
    return head_dim


def _rope(config: Fields, head_dim: int, positions: int) -> RopeSettings:
    # transformers 5 nests everything in rope_parameters; a non-empty rope_scaling (the older key) wins over it.
    group = config.group("rope_scaling") or config.group("rope_parameters") or Fields({}, config.source)
    theta = group.number("rope_theta", 1.0, 1e15, config.number("rope_theta", 1.0, 1e15, 10_000.0))
    partial = group.number("partial_rotary_factor", 0.0, 1.0, config.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    if partial != 1.0:
        raise UnsupportedModel(
            f"{group.source}: partial_rotary_factor is {partial}; Limelight rotates whole heads here"
        )
    kind = group.text("rope_type") or group.text("type") or "default"
    plain = RopeSettings(theta=theta, rotary_dim=head_dim)
    if kind == "default":
        return plain
    if kind in ("linear", "dynamic"):
        factor = group.number("factor", 1.0, 1e6)
        return msgspec.structs.replace(plain, scaling=RopeScaling(kind), factor=factor)
    if kind not in ("llama3", "yarn"):
        known = "default, linear, dynamic, llama3, yarn"
        raise UnsupportedModel(f"{group.source}: rope type is {kind!r}; Limelight knows {known}")

    own = group.integer("original_max_position_embeddings", 1, MAX_POSITIONS, positions)
    original = config.integer("original_max_position_embeddings", 1, MAX_POSITIONS, own)
    if kind == "llama3":
        low = group.number("low_freq_factor", 1e-6, 1e6)
        high = group.number("high_freq_factor", 1e-6, 1e6)
        if high <= low:
            raise group.refusal("high_freq_factor", high, f"it must be above low_freq_factor, which is {low}")
        return msgspec.structs.replace(
            plain,
            scaling=RopeScaling.LLAMA3,
            factor=group.number("factor", 1.0, 1e6),
            original_max_position_embeddings=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    factor = group.number("factor", 1.0, 1e6, max(positions / original, 1.0))
    return msgspec.structs.replace(
        plain,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=group.number("beta_fast", 0.0, 1e6, 0.0) or 32.0,
        beta_slow=group.number("beta_slow", 0.0, 1e6, 0.0) or 1.0,
        truncate=group.flag("truncate", default=True),
        attention_factor=_yarn_attention_factor(group, factor),
    )


def _yarn_attention_factor(group: Fields, factor: float) -> float:
    if "attention_factor" in group:
        return group.number("attention_factor", 1e-6, 1e6)
    mscale = group.number("mscale", 0.0, 1e6, 0.0)
    mscale_all = group.number("mscale_all_dim", 0.0, 1e6, 0.0)
    if mscale and mscale_all:
        return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * mscale_all * math.log(factor) + 1.0)
    return 0.1 * math.log(factor) + 1.0


def _sliding_window(config: Fields, family: FamilyDefaults) -> int | None:
    if not family.has_sliding_window:
        return None
    if "sliding_window" not in config.values:
        return 4096
    return config.integer("sliding_window", 1, MAX_POSITIONS) if "sliding_window" in config else None


def _activation(config: Fields) -> str:
    name = config.text("hidden_act") or "silu"
    if name not in ("silu", "swish"):
        raise UnsupportedModel(f"{config.source}: hidden_act is {name!r}; Limelight runs silu here")
    return "silu"


def _token_ids(config: Fields, name: str, vocab_size: int, default: int) -> frozenset[int]:
    """The ids of a field; transformers' default if it is absent altogether, none if it is null."""
    if name in config.values:
        return config.token_ids(name, vocab_size)
    return frozenset({default} if default < vocab_size else ())


def _dtype(config: Fields) -> str | None:
    name = (config.text("dtype") or config.text("torch_dtype") or "").removeprefix("torch.")
    return name if name in DTYPES else None
