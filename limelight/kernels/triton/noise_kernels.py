"""Device code of the noise of `kernels/gumbel_noise.py`, bit for bit up to the two logarithms."""

import triton
import triton.language as tl

from limelight.kernels.gumbel_noise import LARGEST_UNIFORM as _LARGEST_UNIFORM

LARGEST_UNIFORM = tl.constexpr(_LARGEST_UNIFORM)
WORD_MASK = tl.constexpr(0x7FFFFFFF)


@triton.jit
def mix64(values):
    """Finaliser of splitmix64, uint64."""
    values += 0x9E3779B97F4A7C15
    values = (values ^ (values >> 30)) * 0xBF58476D1CE4E5B9
    values = (values ^ (values >> 27)) * 0x94D049BB133111EB
    return values ^ (values >> 31)


@triton.jit
def mix32(words):
    """`lowbias32`, uint32."""
    words = (words ^ (words >> 16)) * 0x7FEB352D
    words = (words ^ (words >> 15)) * 0x846CA68B
    return words ^ (words >> 16)


@triton.jit
def noise_key(seed_low, seed_high, position):
    """Both halves of a row's key, uint32, from int32 scalars."""
    seed = (seed_high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | seed_low.to(tl.uint32, bitcast=True).to(
        tl.uint64
    )
    key = mix64(mix64(seed) + position.to(tl.uint64))
    return key.to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def noise_words(tokens, first, second):
    """31 random bits of each token, int32; the smaller, the larger the noise."""
    words = mix32(tokens.to(tl.uint32) * 0x9E3779B9 + first)
    return (mix32(words + second) & WORD_MASK).to(tl.int32)


@triton.jit
def gumbel(words):
    """Standard Gumbel noise: -log(-log1p(-uniform))."""
    uniform = tl.minimum((words.to(tl.float32) + 0.5) * (1.0 / 2147483648.0), LARGEST_UNIFORM)
    # log1p as Kahan computes it: what rounding does to 1 - uniform enters both factors and cancels.
    rest = 1.0 - uniform
    exponential = tl.where(rest == 1.0, uniform, -tl.log(rest) * (uniform / tl.where(rest == 1.0, 1.0, 1.0 - rest)))
    return -tl.log(exponential)
