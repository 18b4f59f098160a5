"""Matrices in the order in which the products in C read them (`csrc/formats.h`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.arrays import bytes_of
from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.interface import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

PACK = Function("pack", "ipiiip")
QUANTIZE = Function("quantize_weights", "iiplip")
PANEL = 16
"""Outputs that are multiplied together."""
QUANTIZED_BLOCK = 32
STORED_BYTES = {"Q8_0": 34, "Q4_1": 20}
"""Of a block of `QUANTIZED_BLOCK` weights, in the formats that `quantize_tensor` makes."""


class PackedFormat(NamedTuple):
    """`block` inputs of 16 outputs take `panel_bytes`."""

    number: int
    block: int
    panel_bytes: int


FORMATS = {
    "F32": PackedFormat(0, 1, 64),
    "F16": PackedFormat(1, 1, 32),
    "BF16": PackedFormat(2, 1, 32),
    "Q4_0": PackedFormat(3, 32, 288),
    "Q4_1": PackedFormat(4, 32, 320),
    "Q5_0": PackedFormat(5, 32, 544),
    "Q5_1": PackedFormat(6, 32, 576),
    "Q8_0": PackedFormat(7, 32, 544),
    "Q2_K": PackedFormat(8, 256, 4672),
    "Q3_K": PackedFormat(9, 256, 4384),
    "Q4_K": PackedFormat(10, 256, 2368),
    "Q5_K": PackedFormat(11, 256, 4416),
    "Q6_K": PackedFormat(12, 256, 4384),
    "IQ4_NL": PackedFormat(13, 32, 288),
    "IQ4_XS": PackedFormat(14, 256, 2208),
    "MXFP4": PackedFormat(15, 32, 288),
}
"""Formats by their names in GGUF files, as `csrc/formats.h` has them."""

STORED_FORMATS = frozenset(FORMATS)
FLOAT_FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""By the dtypes of tensors."""


def format_of(stored: str) -> str:
    """The format that a matrix is packed in; other dtypes than those of `FLOAT_FORMATS` become float32."""
    return stored if stored in FORMATS else FLOAT_FORMATS.get(stored, "F32")


def format_of_weight(weight: Tensor | NDArray[np.float32] | StoredTensor) -> str:
    """See `format_of`."""
    return weight.format if isinstance(weight, StoredTensor) else format_of(_dtype_of(weight))


def is_float(format_name: str) -> bool:
    """Whether rows of float32, and not of int8, are multiplied with the format."""
    return FORMATS[format_name].block == 1


def packed_bytes(shape: tuple[int, int], stored: str) -> int:
    """Memory that a matrix [out, in] takes once packed."""
    layout = FORMATS[format_of(stored)]
    return -(-shape[0] // PANEL) * -(-shape[1] // layout.block) * layout.panel_bytes


def pack_matrix(library: Library, weights: Sequence[Tensor | StoredTensor], panels: NDArray[np.uint8]) -> None:
    """Pack matrices [out, in] of one format and one input size, their outputs side by side.

    Args:
        panels: of at least `packed_bytes` of all outputs, to be filled.
    """
    name, num_inputs = format_of_weight(weights[0]), weights[0].shape[1]
    num_outputs = sum(weight.shape[0] for weight in weights)
    end = packed_bytes((num_outputs, num_inputs), name)
    if num_outputs % PANEL:
        panels[end - packed_bytes((PANEL, num_inputs), name) : end] = 0
    first = 0
    for weight in weights:
        rows = np.ascontiguousarray(weight.rows) if isinstance(weight, StoredTensor) else bytes_of(_plain(weight))
        addresses = rows.ctypes.data, panels.ctypes.data
        library.call(PACK, FORMATS[name].number, addresses[0], weight.shape[0], num_inputs, first, addresses[1])
        first += weight.shape[0]


def quantize_tensor(library: Library, weight: Tensor | NDArray[np.float32], name: str) -> StoredTensor:
    """Quantise a matrix [out, in] of any float dtype.

    Args:
        name: "Q8_0" (8 bits for a weight and a scale for 32) or "Q4_1" (4 bits, a scale and a minimum).

    Returns:
        blocks as a GGUF file has them; the last one of a row is filled up where the size is no multiple of 32.

    Raises:
        ValueError: a weight is not finite, or larger than float16 holds.
    """
    weight = _plain(weight)
    num_outputs, num_inputs = weight.shape
    num_blocks = -(-num_inputs // QUANTIZED_BLOCK)
    values, rows = bytes_of(weight), np.empty((num_outputs, num_blocks * STORED_BYTES[name]), np.uint8)
    numbers = FORMATS[name].number, FORMATS[format_of_weight(weight)].number
    if library.call(QUANTIZE, *numbers, values.ctypes.data, num_outputs, num_inputs, rows.ctypes.data):
        raise ValueError(f"a matrix {list(weight.shape)} cannot be quantised: a weight is not finite, or above 65504")
    return StoredTensor(name, (num_outputs, num_inputs), rows)


def _plain(weight: Tensor | NDArray[np.float32]) -> Tensor | NDArray[np.float32]:
    if isinstance(weight, np.ndarray):
        return weight
    weight = weight.detach()
    return weight if _dtype_of(weight) in FLOAT_FORMATS else weight.float()


def _dtype_of(weight: Tensor | NDArray[np.float32]) -> str:
    return str(weight.dtype).removeprefix("torch.")
