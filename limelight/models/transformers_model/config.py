"""`config.json` -> transformers' configuration and class of a model that runs through transformers.

What cannot run is refused here by name as far as the configuration alone tells; `probe.py` finds the rest.
Code from a repository is never run: only classes that transformers itself brings are looked up.
"""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields, read_config
from limelight.models.spec import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    MAX_WIDTH,
    MIN_POSITIONS,
)
from limelight.models.transformers_model.attention import ATTENTION
from limelight.models.wording import listed
from limelight.quoting import quoted

BOUNDS = {
    "num_hidden_layers": MAX_LAYERS,
    "hidden_size": MAX_WIDTH,
    "intermediate_size": MAX_WIDTH,
    "moe_intermediate_size": MAX_WIDTH,
    "num_attention_heads": MAX_HEADS,
    "num_key_value_heads": MAX_HEADS,
    "head_dim": MAX_HEAD_DIM,
    "vocab_size": MAX_VOCAB,
    "max_position_embeddings": MAX_POSITIONS,
    "num_experts": 16 * MAX_EXPERTS,  # some families count experts of a single row each
    "num_local_experts": 16 * MAX_EXPERTS,
    "n_routed_experts": 16 * MAX_EXPERTS,
}
MAX_NUMBER = 2**53
"""No setting of a model is a larger integer."""
LAYERS = re.compile(r"layer|depth|num_blocks", re.IGNORECASE)
"""What the names of settings that count layers, or up to a layer, have in them."""
COUNTS_OF_LAYERS = frozenset({"num_hidden_layers", "num_layers", "n_layer", "n_layers"})
MAX_ABOUT_LAYERS = 2**16
"""Most that any other setting about layers may be."""
SETTINGS_OF_THE_PROGRAM = frozenset(
    {
        "attn_implementation", "experts_implementation", "auto_map", "custom_pipelines", "fusion_config",
        "kernel_config", "distributed_config", "transformers_weights", "name_or_path", "output_attentions",
        "output_hidden_states", "return_dict", "use_cache", "use_return_dict", "gradient_checkpointing",
        "torchscript", "pruned_heads", "quantization_config", "compression_config", "num_labels", "id2label",
        "label2id",
    }
)  # fmt: skip
"""Keys of a `config.json` that say how to run or store a model and not what it is: those are ours to decide. Labels are
of classifiers; transformers makes a table of as many as a file asks for.
"""
ATTENDING = frozenset({"full_attention", "sliding_attention", "attention"})
"""Kinds of layers that paged attention serves, as `layer_types` names them."""
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings whose frequencies transformers takes from the longest sequence of the batch: for all rows alike."""
TRANSFORMERS_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What transformers raises at settings that it does not understand."""


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """A model that transformers can build.

    Attributes:
        fields: `config.json` as it stands.
        config: transformers' configuration; a copy for each model made of it.
        model_class: transformers' decoder class.
        max_position_embeddings: longest context in which every row is computed alike in any batch.
    """

    fields: Fields
    config: Any
    model_class: Any
    max_position_embeddings: int


def read_transformers_config(folder: Path) -> TransformersConfig:
    """The configuration of the model in `folder`.

    Raises:
        CheckpointError: `config.json` is missing, corrupt or impossible.
        UnsupportedModel: the model cannot run on paged attention, or only with code from its repository.
    """
    fields = read_config(folder)
    model_class = _model_class(fields)
    _check_numbers(fields, fields.values)
    values = {
        key: _with_special_floats(value)
        for key, value in fields.values.items()
        if key not in SETTINGS_OF_THE_PROGRAM and not key.startswith("_")
    }
    with understood(fields.source, "read it"):
        config = model_class.config_class.from_dict(values)
        config._attn_implementation = ATTENTION  # noqa: SLF001
        config.use_cache = False
    _check_bounds(fields, config)
    _check_kind(fields, config, model_class)
    return TransformersConfig(fields, config, model_class, _positions(fields, config))


@contextmanager
def understood(source: str, attempt: str) -> Iterator[None]:
    """Errors of transformers become a line that says what was tried.

    Raises:
        UnsupportedModel: transformers could not do it.
    """
    try:
        yield
    except UnsupportedModel as error:  # by our attention, which does not know the file
        raise UnsupportedModel(f"{source}: {error.message}") from None
    except TRANSFORMERS_FAULTS as error:
        import transformers

        lines = str(error).strip().splitlines()
        raise UnsupportedModel(
            f"{source}: transformers {transformers.__version__} cannot {attempt}: {type(error).__name__}"
            f"{': ' + ' '.join(line.strip() for line in lines[:3])[:300] if lines else ''}"
        ) from error


def windows_of_layers(config: Any, num_layers: int) -> list[int | None]:
    """The sliding window of each layer as the configuration states it."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    slides = window is not None and getattr(config, "use_sliding_window", True) is not False
    return [window if slides else None] * num_layers


def _model_class(fields: Fields) -> Any:
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = fields.text("model_type")
    own_code = " with code of its own (auto_map), which Limelight never runs" if "auto_map" in fields else ""
    if model_type is None or model_type not in CONFIG_MAPPING:
        described = "missing" if model_type is None else quoted(model_type)
        raise UnsupportedModel(
            f"{fields.source}: model_type is {described}, which neither Limelight nor transformers "
            f"{transformers.__version__} knows{'; the repository comes' if own_code else ''}{own_code}"
        )
    with understood(fields.source, f"import the model {quoted(model_type)}"):
        config_class = CONFIG_MAPPING[model_type]
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(config_class, None)
    if model_class is None:
        raise _refusal(fields, "it is no decoder of text")
    # The mapping knows a configuration class, several model types may share one.
    name = model_class.__name__
    if not _makes_text(name):
        raise _refusal(fields, f"{name} takes more than text (or makes something else)")
    stated = fields.values.get("architectures") or []
    if (
        isinstance(stated, list)
        and stated
        and not any(str(entry) == name or _makes_text(str(entry)) for entry in stated)
    ):
        raise _refusal(
            fields, f"architectures is {quoted(stated)}; Limelight generates text and needs a ...ForCausalLM model"
        )
    return model_class


def _makes_text(class_name: str) -> bool:
    return class_name.endswith(("ForCausalLM", "LMHeadModel"))


def _check_numbers(fields: Fields, value: object) -> None:
    """Nothing in there asks for unlimited work: classes count, multiply and loop over what they find."""
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        name, entry = pending.pop()
        if isinstance(entry, dict):
            pending += entry.items()
        elif isinstance(entry, list):
            if len(entry) > MAX_VOCAB:
                raise CheckpointError(
                    f"{fields.source}: a list has {len(entry)} entries; at most {MAX_VOCAB} make sense"
                )
            pending += [(name, item) for item in entry]
        elif isinstance(entry, int | float) and LAYERS.search(name) and abs(entry) > _most_layers(name):
            # Before transformers sees it: its configurations make lists of so many entries.
            raise fields.refusal(name, entry, f"it must be an integer up to {_most_layers(name)}")
        elif isinstance(entry, int) and abs(entry) > MAX_NUMBER:
            raise CheckpointError(f"{fields.source}: it holds an integer beyond 2**53, which no setting needs")


def _most_layers(name: str) -> int:
    return MAX_LAYERS if name in COUNTS_OF_LAYERS else MAX_ABOUT_LAYERS


def _with_special_floats(value: Any) -> Any:
    """Infinity and the like as numbers again: transformers writes `{"__float__": "Infinity"}` for them."""
    if isinstance(value, dict):
        tag = value.get("__float__") if len(value) == 1 else None
        if tag in ("Infinity", "-Infinity", "NaN"):
            return float(tag)
        return {key: _with_special_floats(entry) for key, entry in value.items()}
    return [_with_special_floats(entry) for entry in value] if isinstance(value, list) else value


def _check_bounds(fields: Fields, config: Any) -> None:
    for name, high in BOUNDS.items():
        value = getattr(config, name, None)
        if value is not None and (not isinstance(value, int) or not 0 <= value <= high):
            raise fields.refusal(config.attribute_map.get(name, name), value, f"it must be an integer up to {high}")


def _check_kind(fields: Fields, config: Any, model_class: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(fields, "it is an encoder-decoder; Limelight runs decoders")
    kinds = getattr(config, "layer_types", None) or ()
    others = sorted({str(kind) for kind in kinds} - ATTENDING)
    if getattr(model_class, "_is_stateful", False) and (others or not kinds):
        raise _refusal(fields, "its layers keep a running state (state-space or recurrent), which is not kept in pages")
    if others:
        raise _refusal(fields, f"it has layers of the kind {listed(others)}; paged attention serves full and sliding")
    if config.model_type == "bloom" or getattr(config, "alibi", False):
        raise _refusal(fields, "it biases attention by distance (ALiBi), which paged attention does not do")
    if not model_class._can_set_attn_implementation():  # noqa: SLF001
        raise _refusal(fields, "its attention is built in and cannot be replaced")
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        raise _refusal(fields, "it cannot be told the positions of its tokens")


def _positions(fields: Fields, config: Any) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < MIN_POSITIONS:
        raise fields.refusal(
            "max_position_embeddings", positions, f"the model must say how long its context is, {MIN_POSITIONS} or more"
        )
    for group in _rope_groups(config):
        if group.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            original = group.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            positions = min(positions, original or positions)
    if positions < MIN_POSITIONS:
        raise fields.refusal("original_max_position_embeddings", positions, f"it must be at least {MIN_POSITIONS}")
    return int(positions)


def _rope_groups(config: Any) -> list[dict[str, Any]]:
    """The rotary settings of a configuration: one group, or one per kind of layer."""
    stated = getattr(config, "rope_parameters", None) or {}
    return [stated, *(group for group in stated.values() if isinstance(group, dict))]


def _refusal(fields: Fields, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"{fields.source}: {quoted(fields.values.get('model_type'))} does not run here: {reason}")
