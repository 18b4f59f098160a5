"""Keys and values in 8 bits: e4m3 (Micikevicius et al. 2022, arXiv 2209.05433), bytes of a pool of uint8.

Processors before sm_89 have no instructions for these numbers, so there are two ways to read them. Written they are by
arithmetic on bits everywhere: few are, and rounded alike.
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
        bits = tl.abs(scaled).to(tl.int32, bitcast=True)
        # Four bits of exponent with a bias of 7, three of mantissa; below 2**-6 multiples of 2**-9, the distance of
        # float32's numbers at 2**14.
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
        small = (tl.abs(scaled) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        magnitude = tl.where(tl.abs(scaled) < 0.015625, small, normal)
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
        # float16 has one bit more of exponent and seven more of mantissa: shifted, the bits are 2**8 times too small.
        bits = stored.to(tl.uint16)
        half = (((bits & 128) << 8) | ((bits & 127) << 7)).to(tl.float16, bitcast=True)
        values = tl.where((bits & 127) == 127, float("nan"), half.to(tl.float32) * 256).to(DTYPE)
    return values
