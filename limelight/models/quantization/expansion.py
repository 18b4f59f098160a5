"""Integers out of 32-bit words, and from integers and scales to weights, in blocks of bounded size."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BLOCK_VALUES = 2**20
"""Values that are in the works at once."""
WORD = 32
"""Bits of a word; dense packing repeats after as many values."""


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


def rows_of_blocks(scales: Tensor, outputs: int, block_rows: int) -> Tensor:
    """[blocks of rows, blocks of columns] -> [out, blocks of columns], the last block cut off where `out` ends."""
    return scales.repeat_interleave(block_rows, 0)[:outputs]


def per_row(scales: Tensor, outputs: int) -> Tensor:
    """One number, or one for each output, in any shape -> [out, 1]."""
    return scales.reshape(-1, 1).expand(outputs, 1)
