"""Rotary position embedding: tables of cos and sin for every position and way of stretching.

Computed in float32 in the order of operations of the models' first implementations, which they were trained with.
"""

import math

import numpy as np
from numpy.typing import NDArray

from limelight.models.spec import RopeScaling, RopeSettings

Floats = NDArray[np.float32]
POSITIONS_AT_ONCE = 4096
"""Positions whose angles are turned into tables at a time, so that what is in the works stays small."""


def rope_tables(settings: RopeSettings, num_positions: int, trained_positions: int) -> tuple[Floats, Floats]:
    """Tables of cos and sin, each [num_positions, rotary_dim / 2] float32 (Su et al. 2021, arXiv 2104.09864).

    Args:
        num_positions: the context that is served.
        trained_positions: the model's own context, from which dynamic scaling starts to stretch.
    """
    inverse = _inverse_frequencies(settings, num_positions, trained_positions)
    if settings.frequency_factors is not None:
        inverse /= np.array(settings.frequency_factors, np.float32)
    cos, sin = (np.empty((num_positions, len(inverse)), np.float32) for _ in range(2))
    for start in range(0, num_positions, POSITIONS_AT_ONCE):
        rows = slice(start, min(start + POSITIONS_AT_ONCE, num_positions))
        angles = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] * inverse
        exact = angles.astype(np.float64)  # large angles lose all digits in NumPy's own cosine of float32
        cos[rows], sin[rows] = np.cos(exact), np.sin(exact)
    factor = np.float32(settings.attention_factor)
    return cos * factor, sin * factor


def _inverse_frequencies(settings: RopeSettings, num_positions: int, trained_positions: int) -> Floats:
    plain = _plain(settings.theta, settings.rotary_dim)
    match settings.scaling:
        case RopeScaling.LINEAR:
            return plain / settings.factor
        case RopeScaling.DYNAMIC:
            return _dynamic(settings, num_positions, trained_positions)
        case RopeScaling.LLAMA3:
            return _llama3(settings, plain)
        case RopeScaling.YARN:
            return _yarn(settings, plain)
        case RopeScaling.LONGROPE:
            return _longrope(settings, num_positions)
        case _:
            return plain


def _plain(theta: float, rotary_dim: int) -> Floats:
    return np.float32(1) / _powers(theta, rotary_dim)


def _powers(theta: float, rotary_dim: int) -> Floats:
    """Theta ** (2 i / rotary_dim) of each pair i: the exponents are float32, and so is the result."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    powers: Floats = np.power(theta, exponents.astype(np.float64)).astype(np.float32)
    return powers


def _dynamic(settings: RopeSettings, num_positions: int, trained_positions: int) -> Floats:
    """NTK-aware theta for the longest context served (bloc97, emozilla 2023).

    transformers raises theta as a sequence grows, which leaves its cached keys rotated by earlier values; one theta for
    all positions keeps pages valid and shareable. Within the trained context nothing is stretched.
    """
    if num_positions <= trained_positions:
        return _plain(settings.theta, settings.rotary_dim)
    stretch = settings.factor * num_positions / trained_positions - (settings.factor - 1.0)
    theta = settings.theta * stretch ** (settings.rotary_dim / (settings.rotary_dim - 2))
    return _plain(theta, settings.rotary_dim)


def _llama3(settings: RopeSettings, plain: Floats) -> Floats:
    """Low frequencies divided by `factor`, high ones kept, blended between (Llama 3.1 reference code, Meta 2024)."""
    rotations = settings.original_max_position_embeddings * plain / (2 * math.pi)
    smooth = (rotations - settings.low_freq_factor) / (settings.high_freq_factor - settings.low_freq_factor)
    smooth = smooth.clip(0.0, 1.0)
    return (1.0 - smooth) * plain / settings.factor + smooth * plain


def _longrope(settings: RopeSettings, num_positions: int) -> Floats:
    """A divisor for each pair (LongRoPE, Ding et al. 2024, arXiv 2402.13753), one set of two for all positions.

    transformers changes from the short to the long factors when a sequence outgrows the original context, which leaves
    its cached keys rotated by the short ones. Here the longest context that is served decides, as in vLLM: pages stay
    valid and can be shared, and a server of long contexts uses the long factors for short sequences too.
    """
    stretched = num_positions > settings.original_max_position_embeddings
    factors = settings.long_factors if stretched else settings.short_factors
    return np.float32(1) / (np.array(factors, np.float32) * _powers(settings.theta, settings.rotary_dim))


def _yarn(settings: RopeSettings, plain: Floats) -> Floats:
    """NTK by parts, section 3.2 of YaRN (Peng et al. 2023, arXiv 2309.00071); cos and sin carry its temperature."""

    def dimension(num_rotations: float) -> float:
        """The pair that turns `num_rotations` times within the original context."""
        turns = settings.original_max_position_embeddings / (num_rotations * 2 * math.pi)
        return settings.rotary_dim * math.log(turns) / (2 * math.log(settings.theta))

    low, high = dimension(settings.beta_fast), dimension(settings.beta_slow)
    if settings.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, settings.rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp: Floats = ((np.arange(settings.rotary_dim // 2, dtype=np.float32) - low) / (high - low)).clip(0.0, 1.0)
    frequencies: Floats = plain / settings.factor * ramp + plain * (1.0 - ramp)
    return frequencies
