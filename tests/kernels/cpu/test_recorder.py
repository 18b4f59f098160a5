"""Tests of `limelight.kernels.cpu.recorder`."""

import numpy as np

from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.recorder import Recorder, Value
from tests.kernels.cpu.recorded import row_count, run_operation, run_recorded

ADD_NORM = Function("record_add_norm", "pppppppif")


def test_one_operation_runs_over_the_rows_of_the_step_alone(library: Library) -> None:
    generator = np.random.default_rng(0)
    hidden = generator.standard_normal((5, 37), np.float32)
    weight = generator.standard_normal(37, np.float32)
    rows = row_count(5, largest=8)
    result = Value(rows, 37, np.dtype(np.float32))
    [normed] = run_operation(library, ADD_NORM, rows, hidden, None, weight, result, None, 37, 1e-5)
    expected = hidden / np.sqrt((hidden**2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(normed, expected, rtol=1e-5, atol=1e-6)


def test_a_value_is_what_the_next_operation_reads(library: Library) -> None:
    ones = np.ones(16, np.float32)
    hidden = np.full((2, 16), 3.0, np.float32)
    rows = row_count(2)

    def record(recorder: Recorder) -> list[Value]:
        first, second = recorder.value(rows, 16), recorder.value(rows, 16)
        recorder.append(ADD_NORM, rows, hidden, None, ones, first, None, 16, 0.0)
        recorder.append(ADD_NORM, rows, first, None, ones * 2, second, None, 16, 0.0)
        return [second]

    [result] = run_recorded(library, record)
    np.testing.assert_array_equal(result, np.full((2, 16), 2.0, np.float32))
