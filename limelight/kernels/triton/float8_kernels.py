"""Keys and values in 8 bits: e4m3 (Micikevicius et al. 2022, arXiv 2209.05433), bytes of a pool of uint8.

Processors before sm_89 have no instructions for these numbers, so there are two ways to read and write them. Their
16-bit neighbour has the same layout with one bit more of exponent and seven more of mantissa: the bits move up by
seven, and what they say is 2**8 times too small.
"""

import triton
import triton.language as tl

IN_16_BITS = tl.constexpr(0)
"""Not in 8 bits at all: values are stored in the dtype of the pool."""
NATIVE = tl.constexpr(1)
BY_BITS = tl.constexpr(2)

LARGEST = tl.constexpr(448.0)


@triton.jit
def to_stored(values, scale, FLOAT8: tl.constexpr, DTYPE: tl.constexpr):
    """float32 values / scale as they are stored: saturated, rounded to even, NaN kept."""
    if FLOAT8 == IN_16_BITS:
        stored = values.to(DTYPE)
    else:
        scaled = values / scale
        is_nan = scaled != scaled
        scaled = tl.where(is_nan, scaled, tl.minimum(tl.maximum(scaled, -LARGEST), LARGEST))
        if FLOAT8 == NATIVE:
            stored = scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        else:
            bits = (tl.abs(scaled) * (1.0 / 256)).to(tl.float16).to(tl.uint16, bitcast=True)
            magnitude = (bits + 63 + ((bits >> 7) & 1)) >> 7
            stored = (tl.where(is_nan, 127, magnitude) | tl.where(scaled < 0, 128, 0)).to(tl.uint8)
    return stored


@triton.jit
def from_stored(stored, FLOAT8: tl.constexpr, DTYPE: tl.constexpr):
    """Stored values in the dtype that products are computed in, without their scale."""
    if FLOAT8 == IN_16_BITS:
        values = stored.to(DTYPE)
    elif FLOAT8 == NATIVE:
        values = stored.to(tl.float8e4nv, bitcast=True).to(DTYPE)
    else:
        bits = stored.to(tl.uint16)
        half = (((bits & 128) << 8) | ((bits & 127) << 7)).to(tl.float16, bitcast=True)
        values = tl.where((bits & 127) == 127, float("nan"), half.to(tl.float32) * 256).to(DTYPE)
    return values
