"""Rotary tables; `test_llama.py` compares whole models with transformers."""

import pytest
import torch

from limelight.models.rope import rope_tables
from limelight.models.spec import RopeScaling, RopeSettings

PLAIN = RopeSettings(theta=10000.0, rotary_dim=8)


def test_pair_i_turns_by_theta_to_the_minus_2_i_over_the_rotary_dimension() -> None:
    cos, sin = rope_tables(PLAIN, 5, 100)
    assert cos.shape == sin.shape == (5, 4)
    assert cos.dtype == torch.float32
    angles = torch.arange(5).double().outer(torch.tensor([1.0, 0.1, 0.01, 0.001]).double())
    torch.testing.assert_close(cos.double(), angles.cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(sin.double(), angles.sin(), atol=1e-6, rtol=0)


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
    rotations = 64 * 0.1 / (2 * torch.pi)
    smooth = (rotations - 1.0) / 3.0
    blended = 1.0 / ((1.0 - smooth) / 8.0 + smooth)
    factors = RopeSettings(theta=10000.0, rotary_dim=8, frequency_factors=(1.0, blended, 8.0, 8.0))
    for ours, expected in zip(rope_tables(factors, 50, 64), rope_tables(llama3, 50, 64), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("served", "stretched"), [(64, False), (65, True)])
def test_dynamic_scaling_starts_beyond_the_trained_context(served: int, stretched: bool) -> None:
    dynamic = RopeSettings(theta=10000.0, rotary_dim=8, scaling=RopeScaling.DYNAMIC, factor=2.0)
    ours, plain = rope_tables(dynamic, served, 64)[1], rope_tables(PLAIN, served, 64)[1]
    assert torch.equal(ours, plain) != stretched


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
    torch.testing.assert_close(cos**2 + sin**2, torch.full_like(cos, 2.25))
