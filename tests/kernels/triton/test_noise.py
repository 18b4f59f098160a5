import pytest
import torch
import triton
import triton.language as tl

from limelight.kernels.gumbel_noise import gumbel_noise
from limelight.kernels.triton.noise_kernels import gumbel, noise_key, noise_words

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_TOKENS = 4096


@triton.jit
def noise_kernel(seed_words, positions, noise, NUM_TOKENS: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    tokens = tl.arange(0, NUM_TOKENS)
    position = tl.load(positions + row)
    first, second = noise_key(tl.load(seed_words + 2 * row), tl.load(seed_words + 2 * row + 1), position)
    tl.store(noise + row * NUM_TOKENS + tokens, gumbel(noise_words(tokens, first, second)))


@triton.jit
def words_kernel(words, noise, NUM_WORDS: tl.constexpr):  # noqa: N803
    number = tl.arange(0, NUM_WORDS)
    tl.store(noise + number, gumbel(tl.load(words + number)))


def test_noise_is_that_of_the_reference() -> None:
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 0x80000000, 123456789012345])
    positions = torch.tensor([0, 1, 131071, 2**31 - 1, 7, 8, 9])
    noise = torch.empty(len(seeds), NUM_TOKENS)
    noise_kernel[(len(seeds),)](seeds.view(torch.int32), positions.to(torch.int32), noise, NUM_TOKENS=NUM_TOKENS)
    torch.testing.assert_close(noise, gumbel_noise(seeds, positions, NUM_TOKENS), rtol=1e-6, atol=1e-6)


def test_noise_is_exact_and_finite_from_the_smallest_word_to_the_largest() -> None:
    words = torch.tensor([0, 1, 2, 1000, 2**20, 2**30, 2**31 - 200, 2**31 - 1], dtype=torch.int32)
    noise = torch.empty(len(words))
    words_kernel[(1,)](words, noise, NUM_WORDS=len(words))
    uniform = ((words.float() + 0.5) * 2.0**-31).clamp(max=1 - 2.0**-24).double()
    torch.testing.assert_close(noise.double(), -torch.log(-torch.log1p(-uniform)), rtol=1e-6, atol=1e-6)
    assert (noise.diff() <= 0).all(), "the smaller the word, the larger the noise"
