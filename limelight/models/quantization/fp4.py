"""Four-bit floating point, E2M1, with a scale for each 16 or 32 inputs (NVFP4, MXFP4; OCP Microscaling Formats 1.0)."""

import torch
from torch import Tensor

from limelight.models.quantization.expansion import expand_rows

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES))
"""Values by code: the lower three bits are the magnitude, the highest is the sign."""
NVFP4_GROUP = 16
MXFP4_GROUP = 32
EXPONENT_BIAS = 127


def expand_fp4(packed: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """uint8 [out, in / 2], the first of two in the lower bits, and float32 [out, groups] -> float32 [out, in]."""
    values = torch.tensor(E2M1)

    def levels(start: int, stop: int) -> Tensor:
        block = packed[start:stop]
        codes = torch.stack((block & 15, block >> 4), -1).view(stop - start, -1)
        return values[codes.to(torch.int32)]

    return expand_rows((packed.shape[0], packed.shape[1] * 2), levels, scales, None, group_size)


def powers_of_two(scales: Tensor) -> Tensor:
    """uint8 exponents with their bias, or torch's type for them -> float32."""
    exponents = scales.view(torch.uint8).to(torch.float32) - EXPONENT_BIAS
    return exponents.exp2()
