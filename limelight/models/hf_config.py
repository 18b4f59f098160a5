"""`config.json` and `generation_config.json` of a Hugging Face folder -> `ModelSpec` and `SamplingDefaults`.

Reads the layouts of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5 (`rope_parameters`, `dtype`).
Defaults of absent fields are those of transformers' configuration class of the family.
"""

from pathlib import Path

from limelight.errors import UnsupportedModel
from limelight.models.families.family import ConfigDefaults
from limelight.models.families.registry import ARCHITECTURES, family_of
from limelight.models.fields import Fields, read_config, read_json_object
from limelight.models.loaded_model import SamplingDefaults
from limelight.models.quantization.settings import read_quantization
from limelight.models.rope_config import read_rope
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
from limelight.quoting import quoted

DTYPES = ("float32", "bfloat16", "float16")


def read_spec(folder: Path, stored_dtype: str = "float32") -> ModelSpec:
    """The specification of the model in `folder`.

    Args:
        folder: the model's folder.
        stored_dtype: what the weights turn out to be stored in, used where `config.json` does not say.

    Raises:
        CheckpointError: `config.json` or `generation_config.json` is missing, corrupt or impossible.
        UnsupportedModel: it describes something that Limelight does not run.
    """
    config = read_config(folder)
    path = config.source
    architecture = _architecture(config)
    read_quantization(folder)
    family = family_of(architecture)
    if family.text_fields is not None:
        config = family.text_fields(config)
    defaults = family.defaults

    hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    num_kv_heads = _num_kv_heads(config, num_heads, defaults)
    head_dim = _head_dim(config, hidden_size, num_heads, defaults)
    vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
    positions = config.integer(
        "max_position_embeddings", MIN_POSITIONS, MAX_POSITIONS, defaults.max_position_embeddings
    )
    generation = generation_fields(folder)
    common = ModelSpec(
        architecture=architecture,
        source=path,
        num_layers=config.integer("num_hidden_layers", 1, MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", 1, MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        rms_norm_epsilon=config.number("rms_norm_eps", 0.0, 1.0, defaults.rms_norm_epsilon),
        rope=read_rope(
            config, head_dim, positions, default_theta=defaults.rope_theta, partial_rotary=defaults.partial_rotary
        ),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=defaults.tie_word_embeddings),
        eos_token_ids=_token_ids(config, "eos_token_id", vocab_size, defaults.eos_token_id)
        | generation.token_ids("eos_token_id", vocab_size),
        bos_token_id=min(_token_ids(config, "bos_token_id", vocab_size, defaults.bos_token_id), default=None),
        dtype=stated_dtype(config) or stored_dtype,
    )
    return family.refine(common, config)


def read_sampling_defaults(folder: Path) -> SamplingDefaults:
    """The sampling settings that `generation_config.json` recommends; empty without that file.

    `do_sample: false` (transformers' own default) with a temperature set is taken at its word: the temperature counts.

    Raises:
        CheckpointError: a value is out of range.
    """
    fields = generation_fields(folder)

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


def generation_fields(folder: Path) -> Fields:
    """`generation_config.json`, or nothing where the folder has none."""
    path = folder / "generation_config.json"
    return Fields(read_json_object(path) if path.is_file() else {}, str(path))


def _architecture(config: Fields) -> str:
    model_type = config.text("model_type")
    classes = config.values.get("architectures") or []
    if model_type not in ARCHITECTURES:
        described = quoted(model_type) if model_type is not None else f"missing (architectures: {quoted(classes)})"
        raise UnsupportedModel(
            f"{config.source}: model_type is {described}; Limelight runs the architectures {', '.join(ARCHITECTURES)}"
        )
    known = (
        ("ForCausalLM",) if family_of(model_type).text_fields is None else ("ForCausalLM", "ForConditionalGeneration")
    )
    if isinstance(classes, list) and classes and not any(str(name).endswith(known) for name in classes):
        raise UnsupportedModel(
            f"{config.source}: architectures is {quoted(classes)}; Limelight generates text and needs a "
            "...ForCausalLM model"
        )
    return model_type


def _num_kv_heads(config: Fields, num_heads: int, defaults: ConfigDefaults) -> int:
    if "num_key_value_heads" not in config.values and defaults.num_kv_heads is not None:
        num_kv_heads = defaults.num_kv_heads
    else:
        num_kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise config.refusal(
            "num_key_value_heads", num_kv_heads, f"it must divide num_attention_heads, which is {num_heads}"
        )
    return num_kv_heads


def _head_dim(config: Fields, hidden_size: int, num_heads: int, defaults: ConfigDefaults) -> int:
    if "head_dim" not in config and defaults.head_dim is None and hidden_size % num_heads:
        raise config.refusal(
            "hidden_size", hidden_size, f"without head_dim, it must be a multiple of num_attention_heads ({num_heads})"
        )
    head_dim = config.integer("head_dim", 2, MAX_HEAD_DIM, defaults.head_dim or hidden_size // num_heads)
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise config.refusal("head_dim", head_dim, f"it must be an even number from 2 to {MAX_HEAD_DIM}")
    return head_dim


def _token_ids(config: Fields, name: str, vocab_size: int, default: int | None) -> frozenset[int]:
    """The ids of a field; transformers' default if it is absent altogether, none if it is null."""
    if name in config.values:
        return config.token_ids(name, vocab_size)
    return frozenset({default} if default is not None and default < vocab_size else ())


def stated_dtype(config: Fields) -> str | None:
    """What `config.json` says the weights are in, or None."""
    name = (config.text("dtype") or config.text("torch_dtype") or "").removeprefix("torch.")
    return name if name in DTYPES else None
