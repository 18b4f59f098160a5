"""Matrices of random blocks in every stored format, and what they stand for."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.kernels.interface import StoredTensor
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from limelight.models.gguf.blocks import FORMATS, PLAIN, to_float32

BLOCKS = {known.name: known for known in FORMATS.values()}
QUANTIZED = sorted(set(BLOCKS) - set(PLAIN))
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}  # fmt: skip
"""Bytes at which the blocks of a format have float16 numbers."""


def stored_matrix(
    name: str, num_outputs: int, num_inputs: int, generator: np.random.Generator, *, scale: float = 0.02
) -> StoredTensor:
    """Random codes, and scales of about `scale` with either sign; in plain formats random values."""
    shape = (num_outputs, num_inputs)
    if name in PLAIN:
        values = torch.from_numpy(generator.standard_normal(shape, np.float32) * np.float32(scale))
        return StoredTensor(name, shape, values.to(TORCH_DTYPES[PLAIN[name]]).view(torch.uint8).numpy())
    blocks = generator.integers(0, 256, (_num_blocks(name, shape), BLOCKS[name].block_bytes), np.uint8)
    for start in HALVES[name]:
        _put_halves(blocks, start, generator.standard_normal(len(blocks)) * scale)
    if name == "MXFP4":
        blocks[:, 0] = generator.integers(118, 124, len(blocks))
    return StoredTensor(name, shape, blocks.reshape(num_outputs, -1))


def filled_matrix(name: str, byte: int, num_outputs: int, num_inputs: int) -> StoredTensor:
    """Blocks that are filled with a byte, but for scales of 1."""
    shape = (num_outputs, num_inputs)
    blocks = np.full((_num_blocks(name, shape), BLOCKS[name].block_bytes), byte, np.uint8)
    for start in HALVES[name]:
        _put_halves(blocks, start, np.ones(len(blocks)))
    if name == "MXFP4":
        blocks[:, 0] = 128
    return StoredTensor(name, shape, blocks.reshape(num_outputs, -1))


def _num_blocks(name: str, shape: tuple[int, int]) -> int:
    return shape[0] * shape[1] // BLOCKS[name].block_size


def _put_halves(blocks: NDArray[np.uint8], start: int, numbers: NDArray[np.float64]) -> None:
    blocks[:, start : start + 2] = numbers.astype(np.float16)[:, None].view(np.uint8)


def values_of(weight: Tensor | StoredTensor) -> NDArray[np.float64]:
    """[out, in]."""
    if isinstance(weight, StoredTensor):
        return to_float32(np.ascontiguousarray(weight.rows), weight.format, weight.shape).astype(np.float64)
    return weight.to(torch.float64).numpy()


def dequantized(rows: NDArray[np.uint8], width: int) -> NDArray[np.float64]:
    """What the quantised rows [rows, bytes] of `csrc/quantize.h` stand for, [rows, width]."""
    groups = -(-width // 32)
    groups_of_rows = np.ascontiguousarray(rows[:, : groups * 48]).reshape(len(rows), groups, 48)
    codes = groups_of_rows[:, :, :32].view(np.int8).astype(np.float64)
    scales = np.ascontiguousarray(groups_of_rows[:, :, 32:36]).view(np.float32).astype(np.float64)
    return (codes * scales).reshape(len(rows), -1)[:, :width]
