"""Products with weights in 16, 8 and 4 bits: against float64, with the bounds of each format."""

import math

import pytest
import torch
from torch import Tensor

from limelight.kernels.interface import LinearSegment
from limelight.kernels.triton.fp8_rows import quantize_rows
from limelight.kernels.triton.linear import linear, pack_linear
from limelight.kernels.triton.weight_formats import (
    FP8,
    FP8_LARGEST,
    INT4_GROUPS,
    fits,
    fp8_stored,
    packed_bytes,
    quantize,
    stored_formats,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")
ERRORS = {FP8: 0.045, "INT4_32": 0.1, "INT4_64": 0.11, "INT4_128": 0.12}
"""Largest relative error of products of normal numbers: rounding both sides to 3 bits of mantissa gives 0.04."""


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator).bfloat16()


def relative_error(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("format_name", [FP8, *INT4_GROUPS])
@pytest.mark.parametrize("num_rows", [1, 3, 33])
def test_a_fused_projection_is_as_exact_as_its_format(
    format_name: str, num_rows: int, generator: torch.Generator
) -> None:
    weights = [normal(generator, outputs, 256) * 0.05 for outputs in (64, 16, 32)]
    bias = normal(generator, 16)
    segments = [
        LinearSegment(weight=quantize(weight, format_name, "cpu"), bias=bias if index == 1 else None)
        for index, weight in enumerate(weights)
    ]
    packed = pack_linear(segments, "cpu")
    inputs = normal(generator, num_rows, 256)
    result = linear(inputs, packed)
    exact = inputs.double() @ torch.cat(weights).double().t()
    exact[:, 64:80] += bias.double()
    assert result.dtype == torch.bfloat16
    assert relative_error(result, exact) < ERRORS[format_name]
    assert len(packed.parts) == 1


@pytest.mark.parametrize("format_name", INT4_GROUPS)
def test_four_bits_mean_what_the_format_says(format_name: str, generator: torch.Generator) -> None:
    group = INT4_GROUPS[format_name]
    weight = normal(generator, 32, 256)
    stored = quantize(weight, format_name, "cpu")
    assert stored.rows.nbytes == packed_bytes((32, 256), format_name)
    rows, num_groups = torch.from_numpy(stored.rows), 256 // group
    scales, zeros = rows[:, : 4 * num_groups].contiguous().view(torch.bfloat16).view(32, num_groups, 2).unbind(-1)
    codes = torch.stack((rows[:, 4 * num_groups :] >> 4, rows[:, 4 * num_groups :] & 15), -1).view(32, num_groups, -1)
    meant = ((codes.double() - 8) * scales.double()[..., None] + zeros.double()[..., None]).view(32, 256)
    # Half a step of 16 levels, and what a scale and a zero in 8 bits of mantissa lose.
    reach = weight.double().view(32, num_groups, group).abs().amax(-1, keepdim=True).expand(-1, -1, group)
    assert bool(((meant - weight.double()).abs() <= reach.reshape(32, 256) * (1 / 15 + 0.05)).all())
    product = linear(torch.eye(256).bfloat16(), pack_linear([LinearSegment(weight=stored)], "cpu"))
    assert torch.equal(product.t().double(), meant.bfloat16().double())


def test_constant_groups_and_rows_of_zeros_stay_what_they_are() -> None:
    weight = torch.zeros(16, 64)
    weight[3] = 0.75
    inputs = torch.eye(64).bfloat16()
    for format_name in (FP8, "INT4_32"):
        packed = pack_linear([LinearSegment(weight=quantize(weight, format_name, "cpu"))], "cpu")
        assert torch.equal(linear(inputs, packed).t().float(), weight)


def test_eight_bits_from_a_file_are_multiplied_as_they_are(generator: torch.Generator) -> None:
    codes = normal(generator, 32, 64).to(torch.float8_e4m3fn)
    scales = torch.rand(32, generator=generator) + 0.5
    stored = fp8_stored(codes, scales)
    inputs = torch.eye(64).bfloat16() * 448
    result = linear(inputs, pack_linear([LinearSegment(weight=stored)], "cpu"))
    assert torch.equal(result.t(), (codes.float() * scales[:, None] * 448).bfloat16())


def test_a_projection_may_mix_formats(generator: torch.Generator) -> None:
    weights = [normal(generator, 16, 64) for _ in range(3)]
    kept = [weights[0], quantize(weights[1], FP8, "cpu"), weights[2]]
    bias = normal(generator, 16)
    packed = pack_linear([LinearSegment(weight=weight, bias=bias) for weight in kept], "cpu")
    inputs = normal(generator, 5, 64)
    exact = inputs.double() @ torch.cat(weights).double().t() + torch.cat([bias] * 3).double()
    assert len(packed.parts) == 3
    assert relative_error(linear(inputs, packed), exact) < ERRORS[FP8]
    plain = pack_linear([LinearSegment(weight=weight) for weight in weights], "cpu")
    assert relative_error(linear(inputs, plain), exact - torch.cat([bias] * 3).double()) < 0.005


def test_segments_of_different_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"input sizes \[32, 64\]"):
        pack_linear([LinearSegment(weight=torch.zeros(8, size)) for size in (64, 32)], "cpu")


def test_sizes_that_a_format_does_not_fit_count_as_sixteen_bits_and_are_refused() -> None:
    for shape, format_name in (((24, 64), FP8), ((16, 40), FP8), ((12, 64), "INT4_64"), ((16, 96), "INT4_64")):
        assert not fits(shape, format_name)
        assert packed_bytes(shape, format_name) == packed_bytes(shape, "bfloat16") == 2 * math.prod(shape)
        with pytest.raises(ValueError, match="does not fit"):
            quantize(torch.zeros(shape), format_name, "cpu")
    assert packed_bytes((16, 64), FP8) == 16 * 68
    assert packed_bytes((16, 64), "INT4_32") == 16 * (2 * 4 + 32)


def test_only_later_processors_multiply_in_eight_bits() -> None:
    assert FP8 not in stored_formats(86)
    assert FP8 in stored_formats(89)
    assert "INT4_64" in stored_formats(80)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(0, 32), (1, 16), (3, 2048), (2, 2064), (5, 4100)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_in_eight_bits(num_rows: int, num_columns: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    rows = (torch.randn(num_rows, num_columns, generator=generator) * 30).to(dtype)
    codes, scales = quantize_rows(rows)
    assert torch.allclose(scales, rows.float().abs().amax(1, keepdim=True) / FP8_LARGEST)
    scaled = rows.float() / scales
    assert bool(((codes.float() - scaled).abs() <= scaled.abs() / 15.9 + 2**-10).all())


@pytest.mark.filterwarnings("ignore:invalid value")  # infinity by infinity
def test_what_is_not_finite_is_not_hidden_and_zeros_stay() -> None:
    rows = torch.ones(4, 32)
    rows[1, 7], rows[2, 3], rows[3] = math.nan, math.inf, 0.0
    codes, scales = quantize_rows(rows)
    product = codes.float() * scales
    assert product[0].tolist() == [1.0] * 32
    assert bool(product[1].isnan().any())
    assert bool(product[2].isnan().any())
    assert product[3].tolist() == [0.0] * 32
