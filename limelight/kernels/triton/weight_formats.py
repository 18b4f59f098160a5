"""Weights of 8 and 4 bits for GPUs, as they are stored before a product orders them in its own way.

"FP8": e4m3 (Micikevicius et al. 2022, arXiv 2209.05433) with a float32 scale for each output. "INT4_64": integers q of
0 to 15 that mean (q - 8) * scale + zero, with a scale and a zero in bfloat16 for each 64 inputs of an output;
"INT4_32" and "INT4_128" likewise.

A row of FP8 is its scale and its codes, and one of INT4 its (scale, zero) pairs and its codes, two to a byte, the first
in the upper half. Nothing here needs Triton.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.kernels.interface import DTYPE_BYTES, StoredTensor

FP8 = "FP8"
INT4_GROUPS = {f"INT4_{group}": group for group in (32, 64, 128)}
"""Formats of 4 bits -> inputs that share a scale."""
FP8_CAPABILITY = 89
"""Ada: the first with matrix units for FP8."""
FP8_ALIGNMENT = 16
"""Outputs and inputs of a product in FP8 are multiples of this."""
INT4_OUTPUTS = 8
"""Outputs of a product with INT4 are a multiple of this."""
FP8_LARGEST = 448.0
"""The largest number of e4m3."""
SCALE_BYTES = 4
"""Of a row of FP8, or of a group of INT4."""


def stored_formats(capability: int) -> frozenset[str]:
    """Formats of `StoredTensor` that a GPU of this capability, times ten, multiplies with."""
    return frozenset(INT4_GROUPS) | ({FP8} if capability >= FP8_CAPABILITY else set())


def fits(shape: tuple[int, int], format_name: str) -> bool:
    """Whether a matrix [out, in] can be kept in a quantised format."""
    outputs, inputs = shape
    if format_name == FP8:
        return outputs % FP8_ALIGNMENT == 0 and inputs % FP8_ALIGNMENT == 0
    return outputs % INT4_OUTPUTS == 0 and inputs % INT4_GROUPS[format_name] == 0


def packed_bytes(shape: tuple[int, int], stored: str) -> int:
    """Memory of a matrix [out, in]; one that the format does not fit counts as much as in 16 bits."""
    if stored in DTYPE_BYTES:
        return math.prod(shape) * DTYPE_BYTES[stored]
    if not fits(shape, stored):
        return math.prod(shape) * DTYPE_BYTES["bfloat16"]
    return shape[0] * _row_bytes(shape[1], stored)


def quantize(matrix: Tensor | NDArray[np.float32], format_name: str, device: str) -> StoredTensor:
    """A matrix [out, in] of any float dtype in a quantised format; made on the device.

    Raises:
        ValueError: it has another number of dimensions, or is of a size that the format does not fit.
    """
    if matrix.ndim != 2 or not fits((matrix.shape[0], matrix.shape[1]), format_name):
        raise ValueError(f"a matrix {list(matrix.shape)} does not fit {format_name}")
    with torch.inference_mode():
        exact = torch.as_tensor(matrix).to(device).float()
        rows = _fp8_rows(exact) if format_name == FP8 else _int4_rows(exact, INT4_GROUPS[format_name])
        return StoredTensor(format_name, (matrix.shape[0], matrix.shape[1]), rows.cpu().numpy())


def fp8_stored(codes: Tensor, scales: Tensor) -> StoredTensor:
    """`codes` [out, in] e4m3 and their `scales` [out] float32, as they come from a file."""
    scale_bytes = scales.float().reshape(-1, 1).view(torch.uint8)
    rows = torch.cat((scale_bytes, codes.view(torch.uint8)), 1)
    return StoredTensor(FP8, (codes.shape[0], codes.shape[1]), rows.numpy())


def _fp8_rows(matrix: Tensor) -> Tensor:
    """float32 [out, in] -> bytes [out, SCALE_BYTES + in]."""
    largest = matrix.abs().amax(1, keepdim=True)
    scales = torch.where(largest > 0, largest / FP8_LARGEST, 1.0)
    codes = (matrix / scales).clamp_(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)
    return torch.cat((scales.view(torch.uint8), codes.view(torch.uint8)), 1)


def _int4_rows(matrix: Tensor, group: int) -> Tensor:
    """float32 [out, in] -> bytes [out, groups * SCALE_BYTES + in / 2]."""
    outputs, inputs = matrix.shape
    grouped = matrix.view(outputs, inputs // group, group)
    lowest, highest = grouped.aminmax(dim=-1, keepdim=True)
    scales = ((highest - lowest) / 15).to(torch.bfloat16)
    zeros = (lowest + 8 * scales.float()).to(torch.bfloat16)
    steps = (grouped - zeros.float()) / torch.where(scales > 0, scales, 1).float()
    codes = (steps.round_() + 8).clamp_(0, 15).to(torch.uint8).view(outputs, inputs)
    pairs = torch.cat((scales, zeros), -1).view(outputs, -1).view(torch.uint8)
    return torch.cat((pairs, (codes[:, ::2] << 4) | codes[:, 1::2]), 1)


def _row_bytes(inputs: int, format_name: str) -> int:
    if format_name == FP8:
        return SCALE_BYTES + inputs
    return inputs // INT4_GROUPS[format_name] * SCALE_BYTES + inputs // 2
