"""Rotary position embedding: tables of cos and sin for every position and way of stretching.

Computed in float32 in the order of operations of the models' first implementations, which they were trained with.
"""

import math

import torch
from torch import Tensor

from limelight.models.spec import RopeScaling, RopeSettings


def rope_tables(settings: RopeSettings, num_positions: int, trained_positions: int) -> tuple[Tensor, Tensor]:
    """Tables of cos and sin, each [num_positions, rotary_dim / 2] float32 (Su et al. 2021, arXiv 2104.09864).

    Args:
        num_positions: the context that is served.
        trained_positions: the model's own context, from which dynamic scaling starts to stretch.
    """
    inverse = _inverse_frequencies(settings, num_positions, trained_positions)
    if settings.frequency_factors is not None:
        inverse = inverse / torch.tensor(settings.frequency_factors, dtype=torch.float32)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    return angles.cos() * settings.attention_factor, angles.sin() * settings.attention_factor


def _inverse_frequencies(settings: RopeSettings, num_positions: int, trained_positions: int) -> Tensor:
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


def _plain(theta: float, rotary_dim: int) -> Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return 1.0 / theta**exponents


def _dynamic(settings: RopeSettings, num_positions: int, trained_positions: int) -> Tensor:
    """NTK-aware theta for the longest context served (bloc97, emozilla 2023).

    transformers raises theta as a sequence grows, which leaves its cached keys rotated by earlier values; one theta for
    all positions keeps pages valid and shareable. Within the trained context nothing is stretched.
    """
    if num_positions <= trained_positions:
        return _plain(settings.theta, settings.rotary_dim)
    stretch = settings.factor * num_positions / trained_positions - (settings.factor - 1.0)
    theta = settings.theta * stretch ** (settings.rotary_dim / (settings.rotary_dim - 2))
    return _plain(theta, settings.rotary_dim)


def _llama3(settings: RopeSettings, plain: Tensor) -> Tensor:
    """Low frequencies divided by `factor`, high ones kept, blended between (Llama 3.1 reference code, Meta 2024)."""
    rotations = settings.original_max_position_embeddings * plain / (2 * math.pi)
    smooth = (rotations - settings.low_freq_factor) / (settings.high_freq_factor - settings.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return (1.0 - smooth) * plain / settings.factor + smooth * plain


def _longrope(settings: RopeSettings, num_positions: int) -> Tensor:
    """A divisor for each pair (LongRoPE, Ding et al. 2024, arXiv 2402.13753), one set of two for all positions.

    transformers changes from the short to the long factors when a sequence outgrows the original context, which leaves
    its cached keys rotated by the short ones. Here the longest context that is served decides, as in vLLM: pages stay
    valid and can be shared, and a server of long contexts uses the long factors for short sequences too.
    """
    stretched = num_positions > settings.original_max_position_embeddings
    factors = settings.long_factors if stretched else settings.short_factors
    exponents = torch.arange(0, settings.rotary_dim, 2, dtype=torch.float32) / settings.rotary_dim
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * settings.theta**exponents)


def _yarn(settings: RopeSettings, plain: Tensor) -> Tensor:
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
    ramp = ((torch.arange(settings.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return plain / settings.factor * ramp + plain * (1.0 - ramp)
