"""Formats with blocks of 256 values, which are divided into groups of 16 or 32 that have small scales of their own.

Layouts: ggml's `ggml-common.h`. Each function fills float32 `values` [n, 256] from `blocks` [n, bytes]. Operations and
their order are those of ggml, so that results agree to the last bit.
"""

import numpy as np

from limelight.models.gguf.packing import Bytes, Floats, code_table, half, spread_codes, spread_fields

IQ4_VALUES = code_table((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
"""What the codes of IQ4_NL and IQ4_XS stand for."""


def turn_q2_k(blocks: Bytes, values: Floats) -> None:
    """[n, 84]: 16 bytes (scale and minimum of a group: 4 bits each), 256 q of 2 bits, scale and minimum of the block.

    value = (d * scale) * q - (dmin * minimum), in groups of 16.
    """
    values.reshape(-1, 2, 4, 32)[:] = spread_fields(blocks[:, 16:80].reshape(-1, 2, 32), 2)
    groups = values.reshape(-1, 16, 16)
    groups *= (half(blocks, 80) * (blocks[:, :16] & 15))[..., None]
    groups -= (half(blocks, 82) * (blocks[:, :16] >> 4))[..., None]


def turn_q3_k(blocks: Bytes, values: Floats) -> None:
    """[n, 110]: 256 third bits, 256 low pairs of q, 16 scales of 6 bits, scale of the block.

    value = (d * (scale - 32)) * (q - 4), in groups of 16.
    """
    low = spread_fields(blocks[:, 96:104], 4).reshape(-1, 16)
    high = spread_fields(blocks[:, 104:108], 2).reshape(-1, 16)
    scales = half(blocks, 108) * ((low | high << 4).astype(np.float32) - 32)
    numbers = spread_fields(blocks[:, 32:96].reshape(-1, 2, 32), 2)
    numbers |= spread_fields(blocks[:, :32], 1).reshape(numbers.shape) << 2
    values.reshape(numbers.shape)[:] = numbers
    values -= 4
    values.reshape(-1, 16, 16)[:] *= scales[..., None]


def turn_q4_k(blocks: Bytes, values: Floats) -> None:
    """[n, 144]: scale and minimum of the block, 8 scales and minima of 6 bits, 256 q of 4 bits.

    value = (d * scale) * q - (dmin * minimum), in groups of 32.
    """
    values.reshape(-1, 4, 2, 32)[:] = spread_fields(blocks[:, 16:].reshape(-1, 4, 32), 4)
    _scale_groups_of_32(blocks, values)


def turn_q5_k(blocks: Bytes, values: Floats) -> None:
    """[n, 176]: as Q4_K, with 256 fifth bits of q before the others."""
    numbers = spread_fields(blocks[:, 48:].reshape(-1, 4, 32), 4)
    numbers |= spread_fields(blocks[:, 16:48], 1).reshape(numbers.shape) << 4
    values.reshape(numbers.shape)[:] = numbers
    _scale_groups_of_32(blocks, values)


def turn_q6_k(blocks: Bytes, values: Floats) -> None:
    """[n, 210]: 256 low halves of q, 256 high pairs, 16 scales (int8), scale of the block.

    value = (d * scale) * (q - 32), in groups of 16.
    """
    numbers = spread_fields(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    numbers |= spread_fields(blocks[:, 128:192].reshape(-1, 2, 32), 2) << 4
    values.reshape(numbers.shape)[:] = numbers
    values -= 32
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    values.reshape(-1, 16, 16)[:] *= scales[..., None]


def turn_iq4_xs(blocks: Bytes, values: Floats) -> None:
    """[n, 136]: scale of the block, 8 scales of 6 bits (high pairs, then low halves), 256 codes of 4 bits.

    value = (d * (scale - 32)) * table[code], in groups of 32.
    """
    high = spread_fields(blocks[:, 2:4], 2).swapaxes(1, 2).reshape(-1, 8)
    low = spread_fields(blocks[:, 4:8], 4).swapaxes(1, 2).reshape(-1, 8)
    scales = half(blocks, 0) * ((low | high << 4).astype(np.float32) - 32)
    codes = spread_codes(blocks[:, 8:].reshape(-1, 8, 16), IQ4_VALUES)
    np.multiply(codes, scales[..., None, None], out=values.reshape(codes.shape))


def _scale_groups_of_32(blocks: Bytes, values: Floats) -> None:
    """What Q4_K and Q5_K have in common: d, dmin, and 8 scales and minima packed into 12 bytes.

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in their low six bits, and above them the high pairs of 4-7, whose
    low halves are in bytes 8-11.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=1)
    groups = values.reshape(-1, 8, 32)
    groups *= (half(blocks, 0) * scales)[..., None]
    groups -= (half(blocks, 2) * minima)[..., None]
