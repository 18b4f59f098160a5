"""The rotary part of a `config.json`, in the layouts of transformers 4 (`rope_theta`, `rope_scaling`) and 5."""

import math

import msgspec

from limelight.errors import UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.spec import MAX_POSITIONS, RopeScaling, RopeSettings
from limelight.quoting import quoted


def read_rope(
    config: Fields,
    head_dim: int,
    positions: int,
    *,
    default_theta: float = 10_000.0,
    partial_rotary: bool = False,
) -> RopeSettings:
    """The rotary settings of a model.

    Args:
        config: the whole `config.json`.
        positions: the model's own context.
        default_theta: where the config is silent.
        partial_rotary: the family may rotate only the leading dimensions of a head.

    Raises:
        CheckpointError: a value is missing or impossible.
        UnsupportedModel: a way of stretching that is not known here.
    """
    # transformers 5 nests everything in rope_parameters; a non-empty rope_scaling (the older key) wins over it.
    group = config.group("rope_scaling") or config.group("rope_parameters") or Fields({}, config.source)
    theta = group.number("rope_theta", 1.0, 1e15, config.number("rope_theta", 1.0, 1e15, default_theta))
    partial = group.number("partial_rotary_factor", 0.0, 1.0, config.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    if partial != 1.0 and not partial_rotary:
        raise UnsupportedModel(
            f"{group.source}: partial_rotary_factor is {partial}; Limelight rotates whole heads here"
        )
    rotary_dim = int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise group.refusal(
            "partial_rotary_factor", partial, f"it must leave an even number of the head's {head_dim} dimensions"
        )
    return stretched(RopeSettings(theta=theta, rotary_dim=rotary_dim), group, config, positions)


def stretched(plain: RopeSettings, group: Fields, config: Fields, positions: int) -> RopeSettings:
    """`plain` with the scaling that `group` describes; the rest as in `read_rope`, which raises alike."""
    kind = group.text("rope_type") or group.text("type") or "default"
    if kind == "default":
        return plain
    if kind == "dynamic" and plain.rotary_dim == 2:
        raise group.refusal("rope type", kind, "it must be another one where only 2 dimensions of a head are rotated")
    if kind == "yarn" and plain.theta == 1.0:
        raise group.refusal("rope_theta", plain.theta, "it must be above 1 for yarn")
    if kind in ("linear", "dynamic"):
        factor = group.number("factor", 1.0, 1e6)
        return msgspec.structs.replace(plain, scaling=RopeScaling(kind), factor=factor)
    # Phi-3's first configurations call longrope "su", and some "yarn".
    if kind in ("longrope", "su") or (kind == "yarn" and "long_factor" in group):
        return _longrope(group, config, plain, positions)
    if kind not in ("llama3", "yarn"):
        known = "default, linear, dynamic, llama3, yarn, longrope"
        raise UnsupportedModel(f"{group.source}: rope type is {quoted(kind)}; Limelight knows {known}")

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


def yarn_attention_factor(factor: float) -> float:
    """What cos and sin are multiplied with where a yarn model does not say (Peng et al. 2023, arXiv 2309.00071)."""
    return 0.1 * math.log(factor) + 1.0


def longrope_attention_factor(factor: float, original: int) -> float:
    """The same for longrope (Ding et al. 2024, arXiv 2402.13753); `original` is the context before stretching."""
    return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0


def _longrope(group: Fields, config: Fields, plain: RopeSettings, positions: int) -> RopeSettings:
    where = config if "original_max_position_embeddings" in config else group
    original = where.integer("original_max_position_embeddings", 2, MAX_POSITIONS)
    factor = group.number("factor", 1e-6, 1e6, positions / original)
    return msgspec.structs.replace(
        plain,
        scaling=RopeScaling.LONGROPE,
        factor=max(factor, 1.0),
        original_max_position_embeddings=original,
        attention_factor=group.number("attention_factor", 1e-6, 1e6, longrope_attention_factor(factor, original)),
        short_factors=group.numbers("short_factor", plain.rotary_dim // 2, 1e-6, 1e6),
        long_factors=group.numbers("long_factor", plain.rotary_dim // 2, 1e-6, 1e6),
    )


def _yarn_attention_factor(group: Fields, factor: float) -> float:
    if "attention_factor" in group:
        return group.number("attention_factor", 1e-6, 1e6)
    mscale = group.number("mscale", 0.0, 1e6, 0.0)
    mscale_all = group.number("mscale_all_dim", 0.0, 1e6, 0.0)
    if mscale and mscale_all:
        return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * mscale_all * math.log(factor) + 1.0)
    return yarn_attention_factor(factor)
