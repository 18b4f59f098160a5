"""The noise of the Gumbel-max trick: its distribution, and what it depends on."""

import numpy as np
import pytest
import torch

from limelight.kernels.gumbel_noise import gumbel_noise

pytestmark = pytest.mark.usefixtures("one_torch_thread")
EULER = 0.5772156649


def test_noise_is_gumbel_noise() -> None:
    noise = gumbel_noise(torch.arange(40), torch.full((40,), 7), 5000).double().numpy()
    assert abs(noise.mean() - EULER) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    uniform = np.sort(np.exp(-np.exp(-noise)).ravel())
    # Kolmogorov-Smirnov at a level of about 1e-6.
    assert np.abs(uniform - (np.arange(uniform.size) + 0.5) / uniform.size).max() < 2.7 / np.sqrt(uniform.size)


def test_noise_of_neighbouring_seeds_positions_and_tokens_is_unrelated() -> None:
    seeds, positions = torch.arange(64).repeat_interleave(64), torch.arange(64).repeat(64)
    noise = gumbel_noise(seeds, positions, 64).double().numpy().reshape(64, 64, 64)
    noise = (noise - noise.mean()) / noise.std()
    limit = 5 / np.sqrt(noise.size)
    for axis in range(3):
        ahead, behind = np.take(noise, range(1, 64), axis), np.take(noise, range(63), axis)
        assert abs((ahead * behind).mean()) < limit, axis
    # A seed one higher is not the same noise one position on.
    assert abs((noise[1:, :-1] * noise[:-1, 1:]).mean()) < limit


def test_noise_is_finite_for_every_word_that_the_hash_can_give() -> None:
    noise = gumbel_noise(torch.tensor([0, -1, 2**63 - 1, -(2**63)] * 25), torch.arange(100), 49152)
    assert bool(noise.isfinite().all())
    # The largest and smallest values that the 31-bit words allow.
    assert float(noise.min()) > -4
    assert float(noise.max()) < 23


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    seeds, positions = torch.tensor([5, -3, 5, 2**62]), torch.tensor([0, 9, 1, 2**31])
    noise = gumbel_noise(seeds, positions, 1000)
    for row in range(4):
        alone = gumbel_noise(seeds[row : row + 1], positions[row : row + 1], 1000)
        assert torch.equal(alone[0], noise[row])
        # Where in the vector unit a token lands may change the last bit of the logarithm, and nothing more.
        torch.testing.assert_close(gumbel_noise(seeds, positions, 77)[row], noise[row, :77], rtol=1e-6, atol=1e-6)
    assert not torch.equal(noise[0], noise[2])
    assert not torch.equal(noise[0], noise[1])
