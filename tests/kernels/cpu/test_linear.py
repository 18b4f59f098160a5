"""Tests of `limelight.kernels.cpu.linear` and the products in C."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.kernels.cpu import linear
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.packing import FLOAT_FORMATS
from limelight.kernels.cpu.recorder import Recorder, Value, bound
from limelight.kernels.interface import LinearSegment, StoredTensor
from tests.kernels.cpu.recorded import row_count, run_recorded
from tests.kernels.cpu.stored_matrices import BLOCKS, QUANTIZED, dequantized, stored_matrix, values_of

ROUNDING = 1e-5
"""Relative to the sum of the magnitudes of a product's terms."""
INPUT_SIZES = {32: 96, 256: 512, 1: 83}
"""By the size of a format's blocks."""


def multiply(
    library: Library, inputs: NDArray[np.float32], packed: linear.PackedLinear, pool: int | None = None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The product, and the inputs as int8 where they were needed."""

    def record(recorder: Recorder) -> list[Value]:
        memory = np.zeros((len(inputs) + 3, inputs.shape[1]), np.float32)
        memory[: len(inputs)] = inputs
        value = bound(row_count(len(inputs)), memory)
        result = linear.linear(recorder, value, packed)
        return [result] if value.quantized is None else [result, value.quantized]

    results = run_recorded(library, record, pool)
    return results[0], results[1] if len(results) > 1 else None


def assert_close(
    result: NDArray[Any], inputs: NDArray[np.float64], weight: NDArray[np.float64], spread: float = ROUNDING
) -> None:
    expected = inputs @ weight.T
    bound_of_error = spread * (abs(inputs) @ abs(weight).T) + 1e-30
    assert (abs(result - expected) / bound_of_error).max() < 1.0


def rows(num_rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_rows, width), np.float32)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 7, 8, 9, 13, 70, 197])
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_product_of_codes_is_exact_but_for_the_rounding_of_its_sums(
    library: Library, name: str, num_rows: int
) -> None:
    num_inputs = INPUT_SIZES[BLOCKS[name].block_size]
    weight = stored_matrix(name, 37, num_inputs, np.random.default_rng(1))
    inputs = rows(num_rows, num_inputs)
    result, quantized = multiply(library, inputs, linear.pack_linear(library, [LinearSegment(weight=weight)]))
    assert quantized is not None
    assert_close(result, dequantized(quantized, num_inputs), values_of(weight))
