"""Stored number formats of GGUF, and the way from stored bytes to float32.

Layouts: ggml's `ggml-common.h`. A block holds consecutive values of a row and their scales: 32 values in the
formats of this file, 256 in those of `k_blocks.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from limelight.models.gguf import k_blocks
from limelight.models.gguf.k_blocks import IQ4_VALUES
from limelight.models.gguf.packing import (
    Bytes,
    Floats,
    code_table,
    half,
    spread_bits,
    spread_codes,
    spread_nibbles,
)

VALUES_AT_ONCE = 65_536
"""Values turned at a time, so that intermediate results stay in the processor's cache."""

MXFP4_VALUES = code_table((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))
"""Twice the values of OCP's e2m1 numbers (Microscaling Formats specification 1.0), by their four bits."""


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
    6: Format("Q5_0", 32, 22),
    7: Format("Q5_1", 32, 24),
    8: Format("Q8_0", 32, 34),
    10: Format("Q2_K", 256, 84),
    11: Format("Q3_K", 256, 110),
    12: Format("Q4_K", 256, 144),
    13: Format("Q5_K", 256, 176),
    14: Format("Q6_K", 256, 210),
    20: Format("IQ4_NL", 32, 18),
    23: Format("IQ4_XS", 256, 136),
    30: Format("BF16", 1, 2),
    39: Format("MXFP4", 32, 17),
}
"""Formats that can be read, by their number in the file."""

UNSUPPORTED = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Names of the others, for messages."""


def to_float32(stored: Bytes, name: str, shape: tuple[int, ...]) -> Floats:
    """Values of a tensor.

    Args:
        stored: the tensor's bytes, contiguous.
        name: of the format, as in `FORMATS`.
        shape: of the result.

    Returns:
        [shape], in memory of its own.
    """
    if name in PLAIN:
        return plain_to_float32(stored.reshape(-1), name).reshape(shape)
    number_format, turn = BLOCKS[name]
    blocks = stored.reshape(-1, number_format.block_bytes)
    values = np.empty((len(blocks), number_format.block_size), np.float32)
    at_once = VALUES_AT_ONCE // number_format.block_size
    with np.errstate(all="ignore"):  # scales may be infinite or not a number, and so are the values then
        for start in range(0, len(blocks), at_once):
            turn(blocks[start : start + at_once], values[start : start + at_once])
    return values.reshape(shape)


def plain_to_float32(stored: Bytes, name: str) -> Floats:
    """Bytes [n] of a format in `PLAIN` -> float32, in memory of its own."""
    numbers = stored.view(PLAIN_BITS[name])
    if name == "BF16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.view(np.float16 if name == "F16" else np.float32).astype(np.float32)


def turn_q4_0(blocks: Bytes, values: Floats) -> None:
    """Blocks [n, 18] of scale and 32 unsigned 4-bit q -> `values` [n, 32] = scale * (q - 8)."""
    values[:] = spread_nibbles(blocks[:, 2:])
    values -= 8
    values *= half(blocks, 0)


def turn_q4_1(blocks: Bytes, values: Floats) -> None:
    """Blocks [n, 20] of scale, minimum and 32 unsigned 4-bit q -> `values` [n, 32] = scale * q + minimum."""
    values[:] = spread_nibbles(blocks[:, 4:])
    values *= half(blocks, 0)
    values += half(blocks, 2)


def turn_q5_0(blocks: Bytes, values: Floats) -> None:
    """Blocks [n, 22] of scale, fifth bits and 32 low halves of q -> `values` [n, 32] = scale * (q - 16)."""
    values[:] = spread_nibbles(blocks[:, 6:]) | spread_bits(blocks[:, 2:6]) << 4
    values -= 16
    values *= half(blocks, 0)


def turn_q5_1(blocks: Bytes, values: Floats) -> None:
    """Blocks [n, 24] of scale, minimum, fifth bits and 32 low halves -> `values` [n, 32] = scale * q + minimum."""
    values[:] = spread_nibbles(blocks[:, 8:]) | spread_bits(blocks[:, 4:8]) << 4
    values *= half(blocks, 0)
    values += half(blocks, 2)


def turn_q8_0(blocks: Bytes, values: Floats) -> None:
    """Blocks [n, 34] of scale and 32 int8 -> `values` [n, 32] = scale * q."""
    np.multiply(blocks[:, 2:].view(np.int8), half(blocks, 0), out=values)


def turn_iq4_nl(blocks: Bytes, values: Floats) -> None:
    """Blocks [n, 18] of scale and 32 4-bit codes -> `values` [n, 32] = scale * table[code]."""
    np.multiply(spread_codes(blocks[:, 2:], IQ4_VALUES), half(blocks, 0)[..., None], out=values.reshape(-1, 2, 16))


def turn_mxfp4(blocks: Bytes, values: Floats) -> None:
    """Blocks [n, 17] of exponent e and 32 4-bit codes -> `values` [n, 32] = 2 ** (e - 128) * table[code]."""
    # The float32 itself is subnormal for the two smallest exponents.
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    np.multiply(spread_codes(blocks[:, 1:], MXFP4_VALUES), scales[..., None], out=values.reshape(-1, 2, 16))


def is_finite(name: str, rows: Bytes) -> bool:
    """Whether every value is finite: of blocks, told from their scales alone.

    Args:
        name: of the format.
        rows: [rows, bytes], contiguous.
    """
    if name in PLAIN:
        exponent = PLAIN_EXPONENT[name]
        return not bool(((rows.reshape(-1).view(PLAIN_BITS[name]) & exponent) == exponent).any())
    number_format, _ = BLOCKS[name]
    blocks = rows.reshape(-1, number_format.block_bytes)
    if name == "MXFP4":
        return not bool((blocks[:, 0] > LARGEST_MXFP4_EXPONENT).any())
    return all(
        not bool(((blocks[:, start + 1] & HALF_EXPONENT) == HALF_EXPONENT).any()) for start in SCALE_STARTS[name]
    )


LARGEST_MXFP4_EXPONENT = 252
"""12 * 2 ** (252 - 128) is below the largest float32."""
HALF_EXPONENT = 0x7C
"""The exponent's bits in the upper byte of a float16, all of which are set if it is not finite."""
SCALE_STARTS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Where the float16 scales and minimums lie in a block."""
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Formats of single numbers, and the dtypes that they are."""
PLAIN_BITS: dict[str, np.dtype[Any]] = {"F32": np.dtype("u4"), "F16": np.dtype("u2"), "BF16": np.dtype("u2")}
PLAIN_EXPONENT = {"F32": np.uint32(0x7F800000), "F16": np.uint16(0x7C00), "BF16": np.uint16(0x7F80)}
"""The exponent's bits, all of which are set if a number is not finite."""
TURNS: dict[str, Callable[[Bytes, Floats], None]] = {
    "Q4_0": turn_q4_0,
    "Q4_1": turn_q4_1,
    "Q5_0": turn_q5_0,
    "Q5_1": turn_q5_1,
    "Q8_0": turn_q8_0,
    "Q2_K": k_blocks.turn_q2_k,
    "Q3_K": k_blocks.turn_q3_k,
    "Q4_K": k_blocks.turn_q4_k,
    "Q5_K": k_blocks.turn_q5_k,
    "Q6_K": k_blocks.turn_q6_k,
    "IQ4_NL": turn_iq4_nl,
    "IQ4_XS": k_blocks.turn_iq4_xs,
    "MXFP4": turn_mxfp4,
}
BLOCKS = {known.name: (known, TURNS[known.name]) for known in FORMATS.values() if known.name not in PLAIN}
