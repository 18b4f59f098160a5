"""compressed-tensors, what llm-compressor writes: groups of modules, each with a scheme of its own.

A packed matrix [out, in] has `weight_packed` int32 [out, words], levels plus half their range, along the inputs;
`weight_scale`; `weight_shape`; perhaps `weight_zero_point` (packed along the outputs), and `weight_g_idx` where the
inputs were sorted. Others have a `weight` of eight-bit integers or floating point. The scale is one number, or one for
each output, group of inputs or block. weight = (level - zero) * scale. Schemes for activations are not followed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.errors import CheckpointError
from limelight.models.fields import Fields
from limelight.models.quantization.compressed_groups import Scheme, read_schemes, scheme_of
from limelight.models.quantization.expansion import (
    PACKED_FORMAT,
    Levels,
    can_pack,
    expand_rows,
    pack_rows,
    packed_words,
    per_row,
    rows_of_blocks,
    unpack,
)
from limelight.models.quantization.fp4 import MXFP4_GROUP, NVFP4_GROUP, expand_fp4, powers_of_two
from limelight.models.quantization.fp8 import as_fp8_rows, matrix_shape, row_shapes, scalar_shapes
from limelight.models.quantization.gptq import group_of_columns
from limelight.models.quantization.scheme import EXPONENTS, FLOATS, FP8, QuantizedMatrix, Stored, Wanted, plain_format

PACKED, SCALE, ZERO, SHAPE, INDEX = (
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
)
GLOBAL_SCALE = "weight_global_scale"
PARTS = frozenset({PACKED, SCALE, ZERO, SHAPE, INDEX, GLOBAL_SCALE})


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat:
    """See `QuantizationFormat`."""

    schemes: tuple[Scheme, ...]

    @property
    def title(self) -> str:
        """See `QuantizationFormat`."""
        return "compressed-tensors"

    def quantizes(self, stored: Mapping[str, Stored]) -> bool:
        """See `QuantizationFormat`."""
        return not PARTS.isdisjoint(stored) or ("weight" in stored and stored["weight"].type in (*FP8, "I8"))

    def matrix(self, module: str, stored: Mapping[str, Stored]) -> QuantizedMatrix:
        """See `QuantizationFormat`."""
        scheme = scheme_of(module, self.schemes)
        if scheme.format in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
            return _fp4(module, stored, NVFP4_GROUP if scheme.format.startswith("nv") else MXFP4_GROUP)
        if scheme.format == "pack-quantized":
            return _packed(module, stored, scheme)
        return _eight_bit(module, stored, scheme)


def read_compressed_tensors(settings: Fields) -> CompressedTensorsFormat:
    """The format that a `quantization_config` describes.

    Raises:
        CheckpointError: a value is impossible.
        UnsupportedModel: Limelight does not read this kind.
    """
    return CompressedTensorsFormat(read_schemes(settings))


def _packed(module: str, stored: Mapping[str, Stored], scheme: Scheme) -> QuantizedMatrix:
    shape = _logical_shape(module, stored, scheme.bits)
    outputs, inputs = shape
    parts = {
        PACKED: Wanted(("I32",), ((outputs, packed_words(inputs, scheme.bits)),)),
        SHAPE: Wanted(("I64", "I32"), ((2,),)),
        SCALE: Wanted(FLOATS, _scale_shapes(scheme, shape)),
    }
    groups = math.ceil(inputs / scheme.group_size) if scheme.group_size else 1
    if not scheme.symmetric:
        # Current versions pack the zeros of channels and groups like the levels; a single one, and all of the older
        # versions, are plain numbers.
        if ZERO in stored and stored[ZERO].type == "I32":
            parts[ZERO] = Wanted(("I32",), ((packed_words(outputs, scheme.bits), groups),))
        else:
            parts[ZERO] = Wanted(("I8", "I32"), _scale_shapes(scheme, shape))
    if INDEX in stored:
        parts[INDEX] = Wanted(("I32", "I64"), ((inputs,),))
    half = 1 << (scheme.bits - 1)

    def levels(tensors: Mapping[str, Tensor]) -> Levels:
        zeros = torch.full((outputs, groups), float(half))
        if ZERO in tensors:
            zeros = _unpack_zeros(tensors[ZERO], scheme.bits, outputs, half)
        packed = tensors[PACKED]
        return (
            shape,
            lambda start, stop: _unpack_padded(packed[start:stop], scheme.bits)[:, :inputs],
            _scales(tensors[SCALE], scheme, outputs),
            zeros if zeros.shape == (outputs, groups) else per_row(zeros, outputs),
        )

    def expand(tensors: Mapping[str, Tensor]) -> Tensor:
        columns: int | Tensor = group_size
        if INDEX in tensors and scheme.group_size and bool((tensors[INDEX] >= 0).any()):
            columns = group_of_columns(tensors[INDEX], groups, scheme.group_size, f"{module}.{INDEX}")
        return expand_rows(*levels(tensors), columns)

    group_size = scheme.group_size or inputs
    if scheme.block or INDEX in stored or not can_pack(scheme.bits, inputs, group_size):
        return QuantizedMatrix(shape=shape, parts=parts, expand=expand, kept=plain_format(scheme.bits))
    return QuantizedMatrix(
        shape=shape,
        parts=parts,
        expand=expand,
        kept=PACKED_FORMAT,
        pack=lambda tensors: pack_rows(*levels(tensors), group_size),
    )


def _eight_bit(module: str, stored: Mapping[str, Stored], scheme: Scheme) -> QuantizedMatrix:
    shape = matrix_shape(module, "weight", stored)
    parts = {
        "weight": Wanted(FP8 if scheme.is_float else ("I8",), (shape,)),
        SCALE: Wanted(FLOATS, _scale_shapes(scheme, shape)),
    }
    if not scheme.symmetric:
        parts[ZERO] = Wanted(("I8",), _scale_shapes(scheme, shape))

    def expand(tensors: Mapping[str, Tensor]) -> Tensor:
        weight = tensors["weight"]
        return expand_rows(
            shape,
            lambda start, stop: weight[start:stop],
            _scales(tensors[SCALE], scheme, shape[0]),
            _scales(tensors[ZERO], scheme, shape[0]) if ZERO in tensors else None,
            scheme.block[1] if scheme.block else scheme.group_size or shape[1],
        )

    if not scheme.is_float:
        return QuantizedMatrix(shape=shape, parts=parts, expand=expand, kept=plain_format(scheme.bits))
    in_rows = not scheme.block and not scheme.group_size and scheme.symmetric
    as_fp8 = as_fp8_rows(module, stored, SCALE, shape[0]) if in_rows else None
    return QuantizedMatrix(shape=shape, parts=parts, expand=expand, as_fp8=as_fp8)


def _fp4(module: str, stored: Mapping[str, Stored], group_size: int) -> QuantizedMatrix:
    outputs, pairs = matrix_shape(module, PACKED, stored)
    scales = (outputs, math.ceil(pairs * 2 / group_size))
    has_global_scale = group_size == NVFP4_GROUP
    parts = {
        PACKED: Wanted(("U8",), ((outputs, pairs),)),
        SCALE: Wanted(("F8_E4M3",) if has_global_scale else ("U8", EXPONENTS), (scales,)),
    }
    if has_global_scale:
        parts[GLOBAL_SCALE] = Wanted(("F32",), tuple(scalar_shapes()))

    def expand(tensors: Mapping[str, Tensor]) -> Tensor:
        if has_global_scale:
            # The stored number is what the scales were multiplied with to fit into eight bits.
            numbers = tensors[SCALE].to(torch.float32) / tensors[GLOBAL_SCALE].reshape(())
        else:
            numbers = powers_of_two(tensors[SCALE])
        return expand_fp4(tensors[PACKED], numbers, group_size)

    return QuantizedMatrix(shape=(outputs, pairs * 2), parts=parts, expand=expand)


def _logical_shape(module: str, stored: Mapping[str, Stored], bits: int) -> tuple[int, int]:
    """[out, in] as `weight_shape` says, which must be what `weight_packed` holds."""
    packed = matrix_shape(module, PACKED, stored)
    stated = stored.get(SHAPE)
    if stated is None or stated.type not in ("I32", "I64") or stated.shape != (2,):
        raise CheckpointError(f"{module}.{SHAPE} is missing or does not hold two integers")
    outputs, inputs = (int(side) for side in stated.read())
    if inputs < 1 or packed != (outputs, packed_words(inputs, bits)):
        raise CheckpointError(
            f"{module}.{SHAPE} is [{outputs}, {inputs}], which {bits}-bit levels in {module}.{PACKED} of "
            f"{list(packed)} do not have"
        )
    return outputs, inputs


def _scale_shapes(scheme: Scheme, shape: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    outputs, inputs = shape
    if scheme.block:
        return ((math.ceil(outputs / scheme.block[0]), math.ceil(inputs / scheme.block[1])),)
    if scheme.group_size:
        return ((outputs, math.ceil(inputs / scheme.group_size)),)
    return tuple(row_shapes(outputs) if scheme.by_output else scalar_shapes())


def _scales(stored: Tensor, scheme: Scheme, outputs: int) -> Tensor:
    """float32 [out, groups]; zeros have the same shapes."""
    numbers = stored.to(torch.float32)
    if scheme.block:
        return rows_of_blocks(numbers, outputs, scheme.block[0])
    return numbers if scheme.group_size else per_row(numbers, outputs)


def _unpack_zeros(stored: Tensor, bits: int, outputs: int, half: int) -> Tensor:
    """float32, in levels that count from zero."""
    if stored.dtype == torch.int8:
        return stored.to(torch.float32) + half
    return _unpack_padded(stored.t(), bits)[:, :outputs].t().to(torch.float32)


def _unpack_padded(words: Tensor, bits: int) -> Tensor:
    """`unpack` where the last words of a row may be left out."""
    missing = -words.shape[1] % bits if 32 % bits else 0
    return unpack(torch.nn.functional.pad(words, (0, missing)) if missing else words.contiguous(), bits)
