"""Stored number formats of GGUF, and one function per block format that turns blocks into float32.

Layouts: ggml's `ggml-common.h`. A block holds 32 consecutive values of a row behind its float16 scale; in the 4-bit
formats byte j holds value j in its low half and value j + 16 in its high half.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

BLOCKS_AT_ONCE = 1024
"""Blocks turned at a time: intermediate results stay in the processor's cache, and each operation below the size at
which torch calls its threads together, which takes longer than the work itself where other programs use the cores."""


class Format(NamedTuple):
    """A stored number format: `block_size` values in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


FORMATS = {
    0: Format("F32", 1, 4),
    1: Format("F16", 1, 2),
    2: Format("Q4_0", 32, 18),
    3: Format("Q4_1", 32, 20),
    8: Format("Q8_0", 32, 34),
    30: Format("BF16", 1, 2),
}
"""Formats that can be read, by their number in the file."""

UNSUPPORTED = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Names of the others, for messages."""


def to_float32(stored: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Values of a tensor.

    Args:
        stored: the tensor's bytes, uint8, contiguous.
        name: of the format, as in `FORMATS`.
        shape: of the result.

    Returns:
        float32 [shape], in memory of its own.
    """
    if name in PLAIN:
        return stored.reshape(-1).view(PLAIN[name]).to(torch.float32, copy=True).reshape(shape)
    block_bytes, turn = BLOCKS[name]
    blocks = stored.reshape(-1, block_bytes)
    values = torch.empty((len(blocks), 32), dtype=torch.float32)
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        turn(blocks[start : start + BLOCKS_AT_ONCE], values[start : start + BLOCKS_AT_ONCE])
    return values.reshape(shape)


def turn_q8_0(blocks: Tensor, values: Tensor) -> None:
    """Blocks [n, 34] of scale and 32 int8 -> `values` [n, 32] = scale * q."""
    values.copy_(blocks[:, 2:].view(torch.int8))
    values.mul_(_half(blocks, 0))


def turn_q4_0(blocks: Tensor, values: Tensor) -> None:
    """Blocks [n, 18] of scale and 32 unsigned 4-bit q -> `values` [n, 32] = scale * (q - 8)."""
    _copy_nibbles(blocks[:, 2:], values)
    values.sub_(8.0).mul_(_half(blocks, 0))


def turn_q4_1(blocks: Tensor, values: Tensor) -> None:
    """Blocks [n, 20] of scale, minimum and 32 unsigned 4-bit q -> `values` [n, 32] = scale * q + minimum."""
    _copy_nibbles(blocks[:, 4:], values)
    values.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BLOCKS: dict[str, tuple[int, Callable[[Tensor, Tensor], None]]] = {
    "Q8_0": (34, turn_q8_0),
    "Q4_0": (18, turn_q4_0),
    "Q4_1": (20, turn_q4_1),
}


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block, as float32 [n, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).to(torch.float32)


def _copy_nibbles(packed: Tensor, values: Tensor) -> None:
    """[n, 16] bytes -> [n, 32] numbers from 0 to 15."""
    values[:, :16].copy_(packed & 15)
    values[:, 16:].copy_(packed >> 4)
