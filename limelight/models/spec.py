"""What a model is: one shape for all families, whether it comes from `config.json` or from GGUF metadata.

Values only; `hf_config.py` and `gguf/spec.py` fill it from files and check what they read.
"""

import enum

import msgspec

MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_WIDTH = 2**20
MAX_VOCAB = 2**23
MIN_POSITIONS = 2
"""A context for a token and the one that follows it."""
MAX_POSITIONS = 2**31 - 1
MAX_EXPERTS = 4096
"""Bounds on what a file may claim, far above any model, checked before anything of that size is made."""


class RopeScaling(enum.StrEnum):
    """How rotary frequencies are stretched beyond the trained context; names as in transformers."""

    NONE = "none"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


class RopeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding (Su et al. 2021), half-split pairs. Fields that a scaling does not use keep their defaults.

    With `inverse[i] = theta ** (-2 i / rotary_dim)` for i below rotary_dim / 2:
    linear divides them by `factor`; dynamic (NTK) raises theta once a sequence is longer than the model's
    `max_position_embeddings`; llama3 divides the low frequencies by `factor` and blends between the two bounds;
    yarn (Peng et al. 2023) blends by the number of rotations and multiplies cos and sin by `attention_factor`;
    longrope (Ding et al. 2024) divides each by a factor of its own, `long_factors` where more than
    `original_max_position_embeddings` tokens are served and `short_factors` otherwise, and multiplies cos and sin too.

    Attributes:
        rotary_dim: leading dimensions of a head that are rotated; even.
        factor: at least 1.
        original_max_position_embeddings: the context before stretching (llama3, yarn, longrope; linear where it is
            counted in the model's `max_position_embeddings`); 0 where unused.
        low_freq_factor, high_freq_factor: bounds of llama3's blend, high above low.
        beta_fast, beta_slow, truncate: bounds of yarn's blend in rotations, and whether they are rounded outwards.
        attention_factor: multiplies cos and sin; 1.0 except for yarn and longrope, and already worked out.
        short_factors, long_factors: [rotary_dim / 2] (longrope), else None.
        frequency_factors: [rotary_dim / 2], each inverse frequency is divided by its entry (GGUF `rope_freqs.weight`,
            which is how such a file says llama3), or None.
    """

    theta: float
    rotary_dim: int
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    frequency_factors: tuple[float, ...] | None = None


class ExpertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Mixture-of-experts layers: each token goes through `num_per_token` of `num_experts` gated MLPs.

    Attributes:
        intermediate_size: of one expert.
        normalize: the weights of a token's experts are scaled to add up to one.
        layers: the layers that have experts in place of one MLP; None: all.
        shared_intermediate_size: of one more gated MLP, which all tokens go through and which a gate of its own scales;
            None: there is none.
    """

    num_experts: int
    num_per_token: int
    intermediate_size: int
    normalize: bool = True
    layers: frozenset[int] | None = None
    shared_intermediate_size: int | None = None


class ModelOutline(msgspec.Struct, frozen=True, kw_only=True):
    """What serving needs to know of any model, however its layers are built: memory, context, where a text ends.

    Attributes:
        architecture: the family, by its `model_type` in `config.json`; see `families/registry.py`.
        source: the file that this was read from, for messages.
        num_layers: layers that attend, each with keys and values of its own.
        head_dim: size of one attention head; need not be `hidden_size / num_heads`.
        vocab_size: rows of the embedding, possibly padded beyond the tokenizer's ids.
        max_position_embeddings: longest context the model is meant for.
        eos_token_ids: all ids that end a generation.
        dtype: what the weights are meant to be in: "float32", "bfloat16" or "float16".
        notes: what the files hold and is left out here, for people.
    """

    architecture: str
    source: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: frozenset[int] = frozenset()
    dtype: str = "float32"
    notes: tuple[str, ...] = ()

    @property
    def longest_context(self) -> int:
        """Tokens that the position encoding can tell apart: what `max_model_len` may be raised to."""
        return self.max_position_embeddings


class ModelSpec(ModelOutline, frozen=True, kw_only=True):
    """Sizes and settings of a decoder with layers of our own. What a family does not use keeps its default.

    Attributes:
        rope: of the layers that see everything, and of sliding ones unless `local_rope` is set.
        local_rope: of the sliding layers, where it differs.
        qkv_bias: the query, key and value projections have biases.
        output_bias: the attention's output projection has one.
        mlp_bias: the gate, up and down projections have biases.
        qk_norm: queries and keys are normalised, each head by itself, before they are rotated.
        attention_scale: multiplies q k; None: head_dim ** -0.5.
        attention_soft_cap, logits_soft_cap: x becomes cap * tanh(x / cap), or None.
        attention_sinks: each head has a learnt logit that takes part in the softmax and has no value.
        sliding_window: tokens each query sees, itself included, or None for all.
        sliding_layers: the layers that `sliding_window` applies to; None: all.
        norm_offset: added to the stored weights of all norms.
        embedding_scale: multiplies the looked-up embeddings.
        tie_word_embeddings: the output projection is the embedding table.
        activation: of the gated MLP: "silu", "gelu_tanh" or "gelu".
        gate_limit: bound on what enters the gate, where the family clamps it.
        experts: of mixture-of-experts models, else None.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    rms_norm_epsilon: float
    rope: RopeSettings
    local_rope: RopeSettings | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    logits_soft_cap: float | None = None
    attention_sinks: bool = False
    sliding_window: int | None = None
    sliding_layers: frozenset[int] | None = None
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    tie_word_embeddings: bool = False
    activation: str = "silu"
    gate_limit: float | None = None
    experts: ExpertSettings | None = None
    bos_token_id: int | None = None

    def window(self, layer: int) -> int | None:
        """Tokens that a query of layer `layer` sees, or None for all."""
        slides = self.sliding_layers is None or layer in self.sliding_layers
        return self.sliding_window if slides else None

    def has_experts(self, layer: int) -> bool:
        """Whether layer `layer` has experts in place of one MLP."""
        return self.experts is not None and (self.experts.layers is None or layer in self.experts.layers)

    @property
    def scale(self) -> float:
        """What multiplies q k in attention."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def longest_context(self) -> int:
        """Tokens that the position encoding can tell apart: what `max_model_len` may be raised to.

        More than `max_position_embeddings` only where the checkpoint states a stretch that it does not count in.
        """
        limit = self.max_position_embeddings
        original = self.rope.original_max_position_embeddings
        if self.rope.scaling is RopeScaling.YARN or (self.rope.scaling is RopeScaling.LINEAR and original):
            return max(limit, int(original * self.rope.factor))
        if self.rope.scaling in (RopeScaling.LINEAR, RopeScaling.DYNAMIC):
            return int(limit * self.rope.factor)
        return limit
