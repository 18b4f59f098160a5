"""What a model is: one shape for all families, whether it comes from `config.json` or from GGUF metadata.

Values only; `hf_config.py` and `gguf_spec.py` fill it from files and check what they read.
"""

import enum

import msgspec

ARCHITECTURES = ("llama", "mistral")
"""Families that Limelight runs, by their `model_type`. Mistral is Llama with an optional sliding window."""


class RopeScaling(enum.StrEnum):
    """How rotary frequencies are stretched beyond the trained context; names as in transformers."""

    NONE = "none"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"


class RopeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding (Su et al. 2021), half-split pairs. Fields that a scaling does not use keep their defaults.

    With `inverse[i] = theta ** (-2 i / rotary_dim)` for i below rotary_dim / 2:
    linear divides them by `factor`; dynamic (NTK) raises theta once a sequence is longer than the model's
    `max_position_embeddings`; llama3 divides the low frequencies by `factor` and blends between the two bounds;
    yarn (Peng et al. 2023) blends by the number of rotations and multiplies cos and sin by `attention_factor`.

    Attributes:
        rotary_dim: leading dimensions of a head that are rotated; even.
        factor: at least 1.
        original_max_position_embeddings: the context before stretching (llama3, yarn); 0 where unused.
        low_freq_factor, high_freq_factor: bounds of llama3's blend, high above low.
        beta_fast, beta_slow, truncate: bounds of yarn's blend in rotations, and whether they are rounded outwards.
        attention_factor: multiplies cos and sin; 1.0 except for yarn, and already worked out.
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
    frequency_factors: tuple[float, ...] | None = None


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and settings of a decoder.

    Attributes:
        architecture: one of `ARCHITECTURES`.
        source: the file that this was read from, for messages.
        head_dim: size of one attention head; need not be `hidden_size / num_heads`.
        vocab_size: rows of the embedding, possibly padded beyond the tokenizer's ids.
        max_position_embeddings: longest context the model is meant for.
        attention_bias: the q, k, v and output projections have biases.
        mlp_bias: the gate, up and down projections have biases.
        tie_word_embeddings: the output projection is the embedding table.
        sliding_window: tokens each query sees, itself included, or None for all.
        activation: of the gated MLP; "silu".
        eos_token_ids: all ids that end a generation.
        dtype: what the weights are meant to be in: "float32", "bfloat16" or "float16".
    """

    architecture: str
    source: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_epsilon: float
    rope: RopeSettings
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    activation: str = "silu"
    eos_token_ids: frozenset[int] = frozenset()
    bos_token_id: int | None = None
    dtype: str = "float32"

    @property
    def longest_context(self) -> int:
        """Tokens that the position encoding can tell apart: what `max_model_len` may be raised to.

        More than `max_position_embeddings` only where the checkpoint states a stretch that it does not count in.
        """
        limit = self.max_position_embeddings
        if self.rope.scaling in (RopeScaling.LINEAR, RopeScaling.DYNAMIC):
            return int(limit * self.rope.factor)
        if self.rope.scaling is RopeScaling.YARN:
            return max(limit, int(self.rope.original_max_position_embeddings * self.rope.factor))
        return limit
