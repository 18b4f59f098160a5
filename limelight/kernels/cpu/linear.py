"""Products with packed matrices, and rows read out of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu import packing
from limelight.kernels.cpu.arrays import exact, rounded
from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.packing import FORMATS, is_float
from limelight.kernels.cpu.recorder import Recorder, Value
from limelight.kernels.cpu.weight_memory import WeightMemory, aligned
from limelight.kernels.interface import LinearSegment, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

STORED_FORMATS = packing.STORED_FORMATS
LINEAR = Function("record_linear", "pppppppiii")
EMBED = Function("record_embed", "pppppiif")
ROWS_AS_PACKED = Function("rows_as_packed", "i")
NO_BIAS = -1


class PackedPart(NamedTuple):
    """Neighbouring outputs of one format.

    Attributes:
        start: where in the memory its panels begin.
        bias_start: where its biases begin, float32 [num_outputs], or NO_BIAS.
        rows_as_packed: the most rows that are multiplied with panels as they are; more with unpacked ones, to the same
            bits.
    """

    format: str
    num_outputs: int
    start: int
    bias_start: int
    rows_as_packed: int


class PackedLinear(NamedTuple):
    """A product of matrices that share their input, their outputs side by side.

    Attributes:
        memory: panels and biases of all parts.
        parts: at least one.
        scale_format: what a scale of embeddings is rounded to.
    """

    memory: NDArray[np.uint8]
    parts: tuple[PackedPart, ...]
    num_inputs: int
    num_outputs: int
    scale_format: str


def packed_bytes(shape: tuple[int, int], stored: str) -> int:
    """Memory that a matrix [out, in] takes once packed; 64 bytes at most are added where a projection has several."""
    return packing.packed_bytes(shape, stored)


def pack_linear(
    library: Library, segments: Sequence[LinearSegment], weight_memory: WeightMemory | None = None
) -> PackedLinear:
    """Pack each run of segments of one format as one matrix.

    Args:
        weight_memory: where it is packed to, or None for memory of its own.

    Raises:
        ValueError: the segments disagree on the input size.
    """
    input_sizes = sorted({segment.weight.shape[1] for segment in segments})
    if len(input_sizes) != 1:
        raise ValueError(f"segments of one projection have input sizes {input_sizes}; they must be equal")
    runs = [list(run) for _, run in groupby(segments, lambda segment: packing.format_of_weight(segment.weight))]
    parts, num_bytes = [], 0
    for run in runs:
        name = packing.format_of_weight(run[0].weight)
        num_outputs = sum(segment.weight.shape[0] for segment in run)
        start, num_bytes = num_bytes, aligned(num_bytes + packed_bytes((num_outputs, input_sizes[0]), name))
        bias_start = NO_BIAS
        if any(segment.bias is not None for segment in run):
            bias_start, num_bytes = num_bytes, aligned(num_bytes + 4 * num_outputs)
        rows_as_packed = library.call(ROWS_AS_PACKED, FORMATS[name].number)
        parts.append(PackedPart(name, num_outputs, start, bias_start, rows_as_packed))
    memory = (weight_memory or WeightMemory()).allocate(num_bytes)
    for part, run in zip(parts, runs, strict=True):
        packing.pack_matrix(library, [segment.weight for segment in run], memory[part.start :])
        if part.bias_start != NO_BIAS:
            biases = memory[part.bias_start : part.bias_start + 4 * part.num_outputs].view(np.float32)
            np.concatenate(list(_biases(run)), out=biases)
    scale_format = parts[0].format if is_float(parts[0].format) else "F32"
    return PackedLinear(memory, tuple(parts), input_sizes[0], sum(part.num_outputs for part in parts), scale_format)


def pack_embedding(
    library: Library, table: Tensor | StoredTensor, weight_memory: WeightMemory | None = None, *, is_head: bool
) -> tuple[PackedLinear, PackedLinear | None]:
    """One packed matrix for both."""
    packed = pack_linear(library, [LinearSegment(weight=table)], weight_memory)
    return packed, packed if is_head else None


def linear(recorder: Recorder, inputs: Value, packed: PackedLinear) -> Value:
    """See `Kernels`. Parts in code formats multiply the inputs as int8, float parts as they are."""
    outputs = recorder.value(inputs.rows, packed.num_outputs)
    floats = [is_float(part.format) for part in packed.parts]
    recorder.append(
        LINEAR, inputs.rows, inputs if any(floats) else None, None if all(floats) else recorder.quantized(inputs),
        outputs, packed.memory, _table(packed.parts), len(packed.parts), packed.num_inputs, packed.num_outputs,
    )  # fmt: skip
    return outputs


def embed(recorder: Recorder, token_ids: Value, table: PackedLinear, scale: float) -> Value:
    """See `Kernels`; `token_ids` are int32."""
    [part] = table.parts
    rows = recorder.value(token_ids.rows, table.num_inputs)
    number, exact_scale = FORMATS[part.format].number, rounded(scale, table.scale_format)
    recorder.append(EMBED, token_ids.rows, token_ids, table.memory, rows, number, table.num_inputs, exact_scale)
    return rows


def _table(parts: Sequence[PackedPart]) -> NDArray[np.int64]:
    """As `limelight_record_linear` reads it."""
    rows = [(FORMATS[part.format].number, *part[1:]) for part in parts]
    return np.array(rows, np.int64)


def _biases(run: Sequence[LinearSegment]) -> Iterator[NDArray[np.float32]]:
    """Zeros where a segment has none."""
    for segment in run:
        yield np.zeros(segment.weight.shape[0], np.float32) if segment.bias is None else exact(segment.bias)
