"""Tests of `limelight.kernels.cpu.packing`."""

import numpy as np
import pytest
import torch

from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.packing import FORMATS, packed_bytes, quantize_tensor
from limelight.models.gguf.blocks import to_float32

IN_C = Function("packed_bytes", "iii")


def test_layouts_are_those_of_the_kernels(library: Library) -> None:
    for name, layout in FORMATS.items():
        for shape in ((1, 256), (16, 512), (83, 768)):
            assert packed_bytes(shape, name) == library.call_long(IN_C, layout.number, *shape)
    assert packed_bytes((20, 7), "bfloat16") == 2 * 7 * 32
    assert packed_bytes((20, 7), "float64") == 2 * 7 * 64


def random_weights(shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.05).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_eight_bits_are_within_half_a_step(library: Library, dtype: torch.dtype) -> None:
    weight = random_weights((33, 288), dtype)
    stored = quantize_tensor(library, weight, "Q8_0")
    groups = weight.float().reshape(33, -1, 32)
    error = (
        (torch.from_numpy(to_float32(stored.rows, "Q8_0", stored.shape)) - weight.float()).abs().reshape(groups.shape)
    )
    steps = groups.abs().amax(-1, keepdim=True) / 127
    # The scale is rounded to float16, up to 2**-11 of it away from what puts the largest weight on code 127.
    assert (error <= 0.57 * steps + 2**-25).all()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_four_bits_have_a_smaller_error_than_codes_from_minimum_to_maximum(library: Library, scale: float) -> None:
    weight = random_weights((64, 544)) * scale
    stored = quantize_tensor(library, weight, "Q4_1")
    groups = weight.reshape(64, -1, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = ((groups - low) / step).round() * step + low
    error = torch.from_numpy(to_float32(stored.rows, "Q4_1", stored.shape)).reshape(groups.shape) - groups
    assert error.square().mean() < 0.88 * (plain - groups).square().mean()


@pytest.mark.parametrize(("name", "rounding"), [("Q8_0", 2**-11), ("Q4_1", 0.0)])
def test_equal_weights_are_kept(library: Library, name: str, rounding: float) -> None:
    weight = torch.tensor([0.0, 1.0, -0.25, 127.0]).repeat_interleave(32).reshape(2, 64)
    stored = quantize_tensor(library, weight, name)
    np.testing.assert_allclose(to_float32(stored.rows, name, stored.shape), weight.numpy(), rtol=rounding)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e6])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])
def test_what_float16_scales_cannot_hold_is_refused(library: Library, name: str, value: float) -> None:
    weight = random_weights((3, 40))
    weight[2, 39] = value
    with pytest.raises(ValueError, match=r"matrix \[3, 40\] cannot be quantised"):
        quantize_tensor(library, weight, name)
