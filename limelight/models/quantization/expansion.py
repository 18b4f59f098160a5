"""Integers out of 32-bit words, and from integers and scales to weights, in blocks of bounded size."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from limelight.kernels.interface import StoredTensor

BLOCK_VALUES = 2**20
"""Values that are in the works at once."""
WORD = 32
"""Bits of a word; dense packing repeats after as many values."""
PACKED_FORMAT = "Q4_1"
BLOCK = 32
"""Values of a block of `PACKED_FORMAT`: a scale and a minimum in float16, and codes of 4 bits, those of the first 16
values in the lower halves of bytes."""


Levels = tuple[tuple[int, int], Callable[[int, int], Tensor], Tensor, Tensor]
"""Shape, levels, scales and zeros of a weight, as `expand_rows` takes them."""


def unpack(words: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Unsigned integers of `bits` bits packed densely along the last dimension, lowest bits first.

    Value i begins at bit `bits * i` of the row and may reach into the next word.

    Args:
        words: int32 [rows, words]; where `bits` does not divide 32, a row is a whole number of `bits` words.
        order: which value of its word each place holds, place 0 lowest; in turn by default.

    Returns:
        int32 [rows, words * 32 / bits].
    """
    rows, num_words = words.shape
    mask = (1 << bits) - 1
    if WORD % bits == 0:
        places = torch.arange(0, WORD, bits, dtype=torch.int32)
        if order is not None:
            places = places[torch.tensor(order).argsort()]
        return ((words.unsqueeze(-1) >> places) & mask).view(rows, -1)
    grouped = words.reshape(rows, -1, bits)
    values = torch.empty(rows, num_words // bits, WORD, dtype=torch.int32)
    for index in range(WORD):
        word, place = divmod(index * bits, WORD)
        low_bits = min(bits, WORD - place)
        value = (grouped[..., word] >> place) & ((1 << low_bits) - 1)
        if low_bits < bits:
            value |= (grouped[..., word + 1] << low_bits) & mask
        values[..., index] = value
    return values.view(rows, -1)


def packed_words(num_values: int, bits: int) -> int:
    """Words that `num_values` integers fill, a last one that is not full included."""
    return -(-num_values * bits // WORD)


def expand_rows(
    shape: tuple[int, int],
    levels: Callable[[int, int], Tensor],
    scales: Tensor,
    zeros: Tensor | None,
    columns: int | Tensor,
) -> Tensor:
    """(levels - zeros) * scales, in float32, a block of rows at a time.

    Args:
        shape: [out, in] of the weight.
        levels: (start, stop) -> any dtype [stop - start, in], the stored levels of rows of the weight; start is a
            multiple of 32.
        scales: float32 [out, groups].
        zeros: float32 [out, groups], or None for zero.
        columns: neighbouring columns that share a group, or the group of each: int64 [in], each below `groups`.
    """
    outputs, inputs = shape
    weight = torch.empty(shape, dtype=torch.float32)
    step = max(WORD, BLOCK_VALUES // max(inputs, 1) // WORD * WORD)
    if isinstance(columns, int) and inputs % columns:
        columns = torch.arange(inputs) // columns
    for start in range(0, outputs, step):
        stop = min(start + step, outputs)
        block = weight[start:stop]
        block.copy_(levels(start, stop))
        if isinstance(columns, int):
            groups = block.view(stop - start, -1, columns)
            if zeros is not None:
                groups.sub_(zeros[start:stop, :, None])
            groups.mul_(scales[start:stop, :, None])
        else:
            if zeros is not None:
                block.sub_(zeros[start:stop].index_select(1, columns))
            block.mul_(scales[start:stop].index_select(1, columns))
    return weight


def can_pack(bits: int, inputs: int, group_size: int) -> bool:
    """Whether `pack_rows` takes such levels."""
    return bits == 4 and inputs % BLOCK == 0 and group_size % BLOCK == 0


def pack_rows(
    shape: tuple[int, int], levels: Callable[[int, int], Tensor], scales: Tensor, zeros: Tensor, group_size: int
) -> StoredTensor:
    """The same weight as `expand_rows` gives, in blocks of Q4_1: levels stay, and each 32 have a scale and a minimum.

    A scale that is float16 stays as well. The minimum, -zero * scale, is rounded to float16: for a zero of 8 that is
    exact, and for others by at most 1 / 128 of a level, where quantising rounded by half of one.

    Args:
        shape, levels, scales, zeros: as in `expand_rows`.
        group_size: neighbouring columns that share a scale, as `can_pack` says.
    """
    outputs, inputs = shape
    packed = np.empty((outputs, inputs // BLOCK, 4 + BLOCK // 2), np.uint8)
    per_group = group_size // BLOCK
    for start, numbers in ((0, scales), (2, -zeros * scales)):
        halves = numbers.to(torch.float16).repeat_interleave(per_group, 1)
        packed[:, :, start : start + 2] = halves.unsqueeze(-1).contiguous().view(torch.uint8).numpy()
    step = max(WORD, BLOCK_VALUES // inputs // WORD * WORD)
    for first in range(0, outputs, step):
        last = min(first + step, outputs)
        codes = levels(first, last).to(torch.uint8).reshape(last - first, -1, 2, BLOCK // 2)
        packed[first:last, :, 4:] = (codes[:, :, 0] | codes[:, :, 1] << 4).numpy()
    return StoredTensor(PACKED_FORMAT, shape, packed.reshape(outputs, -1))


def rows_of_blocks(scales: Tensor, outputs: int, block_rows: int) -> Tensor:
    """[blocks of rows, blocks of columns] -> [out, blocks of columns], the last block cut off where `out` ends."""
    return scales.repeat_interleave(block_rows, 0)[:outputs]


def per_row(scales: Tensor, outputs: int) -> Tensor:
    """One number, or one for each output, in any shape -> [out, 1]."""
    return scales.reshape(-1, 1).expand(outputs, 1)
