"""Rotary settings of a GGUF file: keys `rope.*` of the architecture, and tensors of factors that belong to them."""

import math
from collections.abc import Mapping

import msgspec

from limelight.errors import UnsupportedModel
from limelight.models.gguf.metadata import Metadata
from limelight.models.rope_config import longrope_attention_factor, yarn_attention_factor
from limelight.models.spec import MAX_POSITIONS, RopeScaling, RopeSettings
from limelight.quoting import quoted

Factors = tuple[float, ...]
FREQUENCY_FACTORS = "rope_freqs.weight"
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"
FACTOR_TENSORS = (FREQUENCY_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Tensors that are settings: [rotary_dim / 2], the divisors of the inverse frequencies."""


def read_gguf_rope(metadata: Metadata, rotary_dim: int, positions: int, factors: Mapping[str, Factors]) -> RopeSettings:
    """The rotary settings of the layers that see everything.

    Args:
        positions: the model's own context.
        factors: content of those of `FACTOR_TENSORS` that the file has.

    Raises:
        CheckpointError: a value is missing or impossible.
        UnsupportedModel: a way of stretching that is not known here.
    """
    for name, values in factors.items():
        if not all(0.0 < factor < math.inf for factor in values):
            raise metadata.fields.refusal(name, values, "it must hold positive numbers")
        if len(values) != rotary_dim // 2:
            raise metadata.fields.refusal(f"length of {name}", len(values), f"it must be {rotary_dim // 2}")
    plain = RopeSettings(
        theta=metadata.number("rope.freq_base", 1.0, 1e15, 10_000.0),
        rotary_dim=rotary_dim,
        frequency_factors=factors.get(FREQUENCY_FACTORS),
    )
    if LONG_FACTORS in factors or SHORT_FACTORS in factors:
        return _longrope(metadata, plain, positions, factors)
    kind = metadata.text("rope.scaling.type")
    if kind is None and "rope.scale_linear" in metadata:
        factor = metadata.number("rope.scale_linear", 1.0, 1e6)
        return msgspec.structs.replace(plain, scaling=RopeScaling.LINEAR, factor=factor)
    if kind in (None, "none"):
        return plain
    factor = metadata.number("rope.scaling.factor", 1.0, 1e6)
    if kind == "linear":
        return msgspec.structs.replace(plain, scaling=RopeScaling.LINEAR, factor=factor)
    if kind != "yarn":
        raise UnsupportedModel(
            f"{metadata.source}: {metadata.key('rope.scaling.type')} is {quoted(kind)}; "
            "Limelight knows none, linear, yarn, and longrope by its tensors"
        )
    # As llama.cpp does, the stated attention factor comes on top of the paper's 0.1 ln(factor) + 1.
    stated = metadata.number("rope.scaling.attn_factor", 1e-6, 1e6, 1.0)
    return msgspec.structs.replace(
        plain,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_max_position_embeddings=metadata.integer(
            "rope.scaling.original_context_length", 1, MAX_POSITIONS, positions
        ),
        beta_fast=metadata.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32.0),
        beta_slow=metadata.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1.0),
        attention_factor=stated * yarn_attention_factor(factor),
    )


def _longrope(metadata: Metadata, plain: RopeSettings, positions: int, factors: Mapping[str, Factors]) -> RopeSettings:
    """Ding et al. 2024, arXiv 2402.13753; the attention factor is what the files' converter writes, or should have."""
    for name in (LONG_FACTORS, SHORT_FACTORS):
        if name not in factors:
            raise metadata.fields.refusal(f"tensor {name}", None, "long and short factors come together")
    original = metadata.integer("rope.scaling.original_context_length", 2, MAX_POSITIONS)
    factor = max(positions / original, 1.0)
    suggested = longrope_attention_factor(factor, original)
    return msgspec.structs.replace(
        plain,
        scaling=RopeScaling.LONGROPE,
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=metadata.number("rope.scaling.attn_factor", 1e-6, 1e6, suggested),
        short_factors=factors[SHORT_FACTORS],
        long_factors=factors[LONG_FACTORS],
    )
