"""How scales and small numbers are packed into the bytes of a block: what several formats have in common.

NumPy throughout: it works on one thread, and its calls cost a fraction of torch's, which counts where each of them has
a few thousand bytes to do.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BIT_SHIFTS = np.arange(8, dtype=np.uint8)
BITS_OF_BYTE = ((np.arange(256, dtype=np.uint8)[:, None] >> BIT_SHIFTS) & 1).view(np.uint64)[:, 0]
"""[256], for each byte its bits as eight bytes, the lowest first."""


def half(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of each block, as float32 [n, 1]."""
    return blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)


def spread_nibbles(packed: Bytes) -> Bytes:
    """[n, k] bytes -> [n, 2 k] numbers from 0 to 15: all low halves, then all high halves."""
    return spread_fields(packed, 4).reshape(len(packed), -1)


def spread_bits(packed: Bytes) -> Bytes:
    """[n, k] bytes -> their bits [n, 8 k], the lowest of each byte first."""
    return BITS_OF_BYTE[packed].view(np.uint8)


def spread_fields(packed: Bytes, width: int) -> Bytes:
    """[n, ..., k] bytes -> the fields of `width` bits in them [n, ..., 8 / width, k]: all lowest fields first."""
    packed = packed.copy()
    mask = np.uint8((1 << width) - 1)
    return np.stack([(packed >> np.uint8(shift)) & mask for shift in range(0, 8, width)], axis=-2)


def code_table(entries: Sequence[int]) -> npt.NDArray[np.uint64]:
    """[256], for each byte the entries (16 in all) of its low and its high half, as two float32."""
    pairs = [[entries[byte & 15], entries[byte >> 4]] for byte in range(256)]
    return np.array(pairs, np.float32).view(np.uint64)[:, 0]


def spread_codes(packed: Bytes, table: npt.NDArray[np.uint64]) -> Floats:
    """[..., k] bytes -> [..., 2, k]: their low halves, then their high ones, by their entries in a `code_table`."""
    return table[packed].view(np.float32).reshape(*packed.shape, 2).swapaxes(-1, -2)
