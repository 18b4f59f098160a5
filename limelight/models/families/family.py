"""What a family of models has to say for itself: one object per family, listed in `registry.py`.

Everything that is alike in all of them (embedding, the chain of layers, final norm, head) is in `decoder.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from limelight.errors import UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.layers import Layer, LayerBuilder
from limelight.models.spec import MAX_POSITIONS, ModelSpec
from limelight.quoting import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefaults:
    """What transformers' configuration class of a family assumes where `config.json` is silent.

    Attributes:
        num_kv_heads: None: as many as heads.
        head_dim: None: hidden_size / num_attention_heads.
        partial_rotary: the family may rotate only the leading dimensions of a head.
        eos_token_id, bos_token_id: None: none.
    """

    max_position_embeddings: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    partial_rotary: bool = False
    rms_norm_epsilon: float = 1e-6
    eos_token_id: int | None = 2
    bos_token_id: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the models of one family are read and built.

    Attributes:
        title: for people ("Llama, Mistral").
        architectures: values of `model_type` in `config.json`.
        refine: (what all families have in common, the whole `config.json`) -> the model's specification.
        parameter_shapes: name -> shape of every parameter that a checkpoint must have, under transformers' names;
            those outside of layers come from `decoder.outer_shapes`.
        build_layer: reads and packs one decoder layer.
        text_fields: the text part of the `config.json` of models that also see or hear, else None.
        text_name: the name of a stored tensor -> that of the text model's parameter, or None if it is of another part.
    """

    title: str
    architectures: tuple[str, ...]
    defaults: ConfigDefaults
    refine: Callable[[ModelSpec, Fields], ModelSpec]
    parameter_shapes: Callable[[ModelSpec], dict[str, tuple[int, ...]]]
    build_layer: Callable[[LayerBuilder], Layer]
    text_fields: Callable[[Fields], Fields] | None = None
    text_name: Callable[[str], str | None] | None = None


def read_activation(config: Fields, name: str = "hidden_act", default: str = "silu") -> str:
    """The activation of a gated MLP, by the name that `ModelSpec.activation` has for it.

    Raises:
        UnsupportedModel: another function.
    """
    known = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu"}
    stated = config.text(name) or default
    if stated not in known:
        raise UnsupportedModel(f"{config.source}: {name} is {quoted(stated)}; Limelight runs {', '.join(known)} here")
    return known[stated]


def read_sliding_window(config: Fields, default: int | None) -> int | None:
    """Tokens that a query of a sliding layer sees, itself included: `default` where the file is silent, None for null.

    Raises:
        CheckpointError: it is no number of tokens.
    """
    if "sliding_window" in config.values and "sliding_window" not in config:
        return None
    return config.integer("sliding_window", 1, MAX_POSITIONS) if "sliding_window" in config else default


def all_but_every(period: int, num_layers: int) -> frozenset[int]:
    """The layers, without every `period`th counted from 1."""
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % period)


def read_sliding_layers(config: Fields, num_layers: int, default: frozenset[int]) -> frozenset[int]:
    """The layers that `layer_types` calls "sliding_attention"; `default` where it is absent.

    Raises:
        CheckpointError: it is not a list of `num_layers` known types.
    """
    types = config.values.get("layer_types")
    if types is None:
        return default
    if not isinstance(types, list) or len(types) != num_layers:
        raise config.refusal("layer_types", types, f"it must be a list of {num_layers} entries, one for each layer")
    for layer, kind in enumerate(types):
        if kind not in ("sliding_attention", "full_attention"):
            raise config.refusal(f"layer_types[{layer}]", kind, "it must be sliding_attention or full_attention")
    return frozenset(layer for layer, kind in enumerate(types) if kind == "sliding_attention")
