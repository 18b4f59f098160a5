"""Tests of rows that become int8 (`csrc/quantize.h`)."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import QUANTIZE, QUANTIZED_ROW_BYTES, Value
from tests.kernels.cpu.recorded import row_count, run_operation

GROUP = np.dtype(
    [("codes", np.int8, 32), ("scale", np.float32), ("sum", np.float32), ("high", np.float32), ("codes_sum", np.int32)]
)


def quantize(library: Library, rows: NDArray[np.float32]) -> NDArray[Any]:
    """The groups of each row, [rows, groups]."""
    num_rows, width = rows.shape
    row_bytes = library.call_long(QUANTIZED_ROW_BYTES, width)
    assert row_bytes % 64 == 0
    count = row_count(num_rows, num_rows)
    result = Value(count, row_bytes, np.dtype(np.uint8))
    [quantized] = run_operation(library, QUANTIZE, count, rows, result, width)
    num_groups = -(-width // 32)
    return np.ascontiguousarray(quantized[:, : num_groups * GROUP.itemsize]).view(GROUP)


@pytest.mark.parametrize("width", [1, 31, 32, 33, 64, 576, 1000])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-3, 1.0, 1e30])
def test_codes_are_the_nearest(library: Library, width: int, magnitude: float) -> None:
    rows = (np.random.default_rng(width).standard_normal((7, width)) * magnitude).astype(np.float32)
    groups = quantize(library, rows)
    padded = np.pad(rows, ((0, 0), (0, -width % 32))).reshape(7, -1, 32)
    largest = abs(padded).max(-1, keepdims=True)
    np.testing.assert_array_equal(groups["codes"], np.rint(padded * (np.float32(127) / largest)))
    np.testing.assert_array_equal(groups["scale"], largest[..., 0] / np.float32(127))
    codes = groups["codes"].astype(np.int32)
    np.testing.assert_array_equal(groups["codes_sum"], codes.sum(-1))
    np.testing.assert_array_equal(groups["sum"], groups["scale"] * codes.sum(-1).astype(np.float32))
    np.testing.assert_array_equal(groups["high"], groups["scale"] * codes[..., 16:].sum(-1).astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_group_with_a_value_that_is_not_finite_has_no_scale(library: Library, value: float) -> None:
    rows = np.ones((1, 96), np.float32)
    rows[0, 40] = value
    groups = quantize(library, rows)[0]
    np.testing.assert_array_equal(np.isnan(groups["scale"]), [False, True, False])
    assert np.isnan(groups["sum"][1])
    assert not groups["codes"][1].any()


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38])
def test_groups_that_are_nearly_zero_are_zero(library: Library, value: float) -> None:
    groups = quantize(library, np.full((1, 32), value, np.float32))[0]
    assert groups["scale"][0] == 0.0
    assert not groups["codes"].any()


def test_the_largest_numbers_of_float32_have_codes(library: Library) -> None:
    rows = np.array([[3.4e38, -3.4e38, 1.7e38, 0.0]], np.float32)
    groups = quantize(library, rows)[0]
    np.testing.assert_array_equal(groups["codes"][0, :4], [127, -127, 64, 0])
