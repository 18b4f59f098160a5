"""Rotary tables; `test_llama.py` compares whole models with transformers."""

import math

import numpy as np
import pytest
import torch

from limelight.models.rope import rope_tables
from limelight.models.spec import RopeScaling, RopeSettings

PLAIN = RopeSettings(theta=10000.0, rotary_dim=8)


def test_pair_i_turns_by_theta_to_the_minus_2_i_over_the_rotary_dimension() -> None:
    cos, sin = rope_tables(PLAIN, 5, 100)
    assert cos.shape == sin.shape == (5, 4)
    assert cos.dtype == np.float32
    angles = np.arange(5)[:, None] * [1.0, 0.1, 0.01, 0.001]
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-6, rtol=0)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-6, rtol=0)


@pytest.mark.parametrize("rotary_dim", [64, 128])
@pytest.mark.parametrize("theta", [10_000.0, 100_000.0, 150_000.0, 1e6])
def test_numbers_are_those_of_torch_within_the_rounding_of_an_angle(theta: float, rotary_dim: int) -> None:
    inverse = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    angles = torch.outer(torch.arange(9000, dtype=torch.float32), inverse)
    bound = 2**-22 * (1 + angles.numpy())
    tables = rope_tables(RopeSettings(theta=theta, rotary_dim=rotary_dim), 9000, 9000)
    for ours, expected in zip(tables, (angles.cos(), angles.sin()), strict=True):
        assert (np.abs(ours - expected.numpy()) <= bound).all()


def test_frequency_factors_say_the_same_as_llama3() -> None:
    """GGUF files carry the divisors that the llama3 formula gives."""
    llama3 = RopeSettings(
        theta=10000.0,
        rotary_dim=8,
        scaling=RopeScaling.LLAMA3,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    # 64 positions hold 10.2, 1.02, 0.1 and 0.01 rotations: kept, blended, divided, divided.
    rotations = 64 * 0.1 / (2 * math.pi)
    smooth = (rotations - 1.0) / 3.0
    blended = 1.0 / ((1.0 - smooth) / 8.0 + smooth)
    factors = RopeSettings(theta=10000.0, rotary_dim=8, frequency_factors=(1.0, blended, 8.0, 8.0))
    for ours, expected in zip(rope_tables(factors, 50, 64), rope_tables(llama3, 50, 64), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("served", "stretched"), [(64, False), (65, True)])
def test_dynamic_scaling_starts_beyond_the_trained_context(served: int, stretched: bool) -> None:
    dynamic = RopeSettings(theta=10000.0, rotary_dim=8, scaling=RopeScaling.DYNAMIC, factor=2.0)
    ours, plain = rope_tables(dynamic, served, 64)[1], rope_tables(PLAIN, served, 64)[1]
    assert np.array_equal(ours, plain) != stretched


def test_the_attention_factor_scales_both_tables() -> None:
    settings = RopeSettings(
        theta=10000.0,
        rotary_dim=8,
        scaling=RopeScaling.YARN,
        factor=4.0,
        original_max_position_embeddings=32,
        attention_factor=1.5,
    )
    cos, sin = rope_tables(settings, 10, 128)
    np.testing.assert_allclose(cos**2 + sin**2, np.full_like(cos, 2.25), rtol=1e-6)
