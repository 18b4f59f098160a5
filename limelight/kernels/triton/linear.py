"""Products with matrices: cuBLAS's in 16 bits, and torch's own with weights of 8 and 4 bits (`weight_formats.py`).

Rows that meet FP8 weights become e4m3 too, with a scale each, so that the product runs on matrix units of 8 bits. Both
kinds of quantised products compute in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from limelight.kernels.interface import LinearSegment, StoredTensor
from limelight.kernels.triton.fp8_rows import quantize_rows
from limelight.kernels.triton.weight_formats import FP8, INT4_GROUPS, SCALE_BYTES


@dataclass(frozen=True, slots=True)
class Fp8Part:
    """`weight` [out, in] e4m3; `scales` [1, out] float32."""

    weight: Tensor
    scales: Tensor


@dataclass(frozen=True, slots=True)
class Int4Part:
    """`weight` as torch's operators order it; `scales_and_zeros` [in / group, out, 2] bfloat16."""

    weight: Tensor
    scales_and_zeros: Tensor
    group: int


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A product of matrices that share their input.

    Attributes:
        parts: [out, in] in 16 bits, or quantised, outputs in order. More than one where a projection's matrices are
            kept in different formats.
        bias: [sum of out] or None.
    """

    parts: tuple[Tensor | Fp8Part | Int4Part, ...]
    bias: Tensor | None


def pack_linear(segments: Sequence[LinearSegment], device: str) -> PackedLinear:
    """Neighbours of one format become one product.

    Raises:
        ValueError: the segments disagree on the input size.
    """
    input_sizes = sorted({segment.weight.shape[1] for segment in segments})
    if len(input_sizes) != 1:
        raise ValueError(f"segments of one projection have input sizes {input_sizes}; they must be equal")
    with torch.inference_mode():
        weights = [segment.weight for segment in segments]
        parts = [_pack(format_name, list(run), device) for format_name, run in groupby(weights, _format_of)]
        return PackedLinear(tuple(parts), _joined_bias(segments, device))


def linear(inputs: Tensor, packed: PackedLinear) -> Tensor:
    """`inputs` [tokens, in] times a packed product -> [tokens, sum of out]."""
    if len(packed.parts) == 1 and isinstance(packed.parts[0], Tensor):
        return F.linear(inputs, packed.parts[0], packed.bias)
    outputs = [_product(inputs, part) for part in packed.parts]
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
    return joined if packed.bias is None else joined.add_(packed.bias)


def _product(inputs: Tensor, part: Tensor | Fp8Part | Int4Part) -> Tensor:
    if isinstance(part, Tensor):
        return F.linear(inputs, part)
    if isinstance(part, Fp8Part):
        codes, scales = quantize_rows(inputs)
        return torch._scaled_mm(  # noqa: SLF001 (torch has it nowhere else before 2.10)
            codes,
            part.weight.t(),
            scale_a=scales,
            scale_b=part.scales,
            out_dtype=torch.bfloat16,
            use_fast_accum=inputs.is_cuda,
        )
    operators = torch.ops.aten
    product = operators._weight_int4pack_mm if inputs.is_cuda else operators._weight_int4pack_mm_for_cpu  # noqa: SLF001
    result: Tensor = product(inputs, part.weight, part.group, part.scales_and_zeros)
    return result


def _format_of(weight: Tensor | StoredTensor) -> str | None:
    return weight.format if isinstance(weight, StoredTensor) else None


def _pack(
    format_name: str | None, weights: Sequence[Tensor | StoredTensor], device: str
) -> Tensor | Fp8Part | Int4Part:
    if format_name is None:
        tensors = [weight for weight in weights if isinstance(weight, Tensor)]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    stored = [torch.from_numpy(weight.rows).to(device) for weight in weights if isinstance(weight, StoredTensor)]
    rows = stored[0] if len(stored) == 1 else torch.cat(stored)
    if format_name == FP8:
        scales = rows[:, :SCALE_BYTES].contiguous().view(torch.float32)
        return Fp8Part(rows[:, SCALE_BYTES:].contiguous().view(torch.float8_e4m3fn), scales.reshape(1, -1))
    return _pack_int4(rows, weights[0].shape[1], INT4_GROUPS[format_name])


def _pack_int4(rows: Tensor, inputs: int, group: int) -> Int4Part:
    num_groups = inputs // group
    pairs = rows[:, : num_groups * SCALE_BYTES].contiguous().view(torch.bfloat16).view(-1, num_groups, 2)
    codes = rows[:, num_groups * SCALE_BYTES :].contiguous()
    # The operator's tiles are 16 inputs wide; it reads as many of them at once as divide the row.
    num_tiles = next(tiles for tiles in (8, 4, 2) if inputs % (tiles * 16) == 0)
    operators = torch.ops.aten
    if rows.is_cuda:
        weight = operators._convert_weight_to_int4pack(codes, num_tiles)  # noqa: SLF001
    else:
        unpacked = torch.stack((codes >> 4, codes & 15), -1).view(-1, inputs).to(torch.int32)
        weight = operators._convert_weight_to_int4pack_for_cpu(unpacked, num_tiles)  # noqa: SLF001
    return Int4Part(weight, pairs.transpose(0, 1).contiguous(), group)


def _joined_bias(segments: Sequence[LinearSegment], device: str) -> Tensor | None:
    """Biases in a row, zeros where a segment has none; None if no segment has one."""
    given = [segment.bias for segment in segments if segment.bias is not None]
    if not given:
        return None
    dtype = given[0].dtype
    return torch.cat(
        [
            torch.zeros(segment.weight.shape[0], dtype=dtype, device=device) if segment.bias is None else segment.bias
            for segment in segments
        ]
    )
