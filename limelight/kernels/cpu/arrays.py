"""Tensors and arrays as the C code reads them. A tensor is a guest here: without one, torch is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def exact(values: Tensor | NDArray[np.float32]) -> NDArray[np.float32]:
    """Numbers as a contiguous array of float32; their own memory where they are that already."""
    if not isinstance(values, np.ndarray):
        values = values.detach().float().numpy()
    return np.ascontiguousarray(values, np.float32)


def bytes_of(matrix: Tensor | NDArray[np.float32]) -> NDArray[np.uint8]:
    """The bytes of a matrix one after the other, [bytes]; its own memory where it is contiguous."""
    if isinstance(matrix, np.ndarray):
        return np.ascontiguousarray(matrix).reshape(-1).view(np.uint8)
    import torch

    array: NDArray[np.uint8] = matrix.contiguous().reshape(-1).view(torch.uint8).numpy()
    return array


def rounded(value: float, format_name: str) -> float:
    """A number as "F32", "F16" or "BF16" hold it."""
    if format_name == "F16":
        return float(np.float16(value))
    single = np.array([value], np.float32)
    if format_name == "BF16":
        bits = single.view(np.uint32)
        bits += 0x7FFF + (bits >> 16 & 1)  # to the nearest, ties to even
        bits &= 0xFFFF0000
    return float(single[0])
