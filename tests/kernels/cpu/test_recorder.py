"""Tests of `limelight.kernels.cpu.recorder`."""

import gc
import itertools
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.recorder import ALIGNMENT, Operation, Recorder, RowCount, Value, _places, bound
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


@st.composite
def passes(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    """Sizes of values, which of them each operation names, and those that are kept."""
    sizes = draw(st.lists(st.integers(0, 300), min_size=1, max_size=12))
    numbers = st.integers(0, len(sizes) - 1)
    operations = draw(st.lists(st.lists(numbers, max_size=4), min_size=1, max_size=15))
    return sizes, operations, draw(st.lists(numbers, max_size=3, unique=True))


@given(passes())
def test_values_that_live_at_once_never_overlap(made: tuple[list[int], list[list[int]], list[int]]) -> None:
    sizes, operations, kept = made
    values = [Value(row_count(1, largest=1), size, np.dtype(np.uint8)) for size in sizes]
    recorded = [Operation(Function("", ""), [values[number] for number in named]) for named in operations]
    places, num_bytes = _places(recorded, [values[number] for number in kept])

    lives = {}
    for number, value in enumerate(values):
        named = [index for index, numbers in enumerate(operations) if number in numbers]
        if number in kept:
            lives[value] = (0, len(operations))
        elif named:
            lives[value] = (named[0], named[-1])
    assert places.keys() == lives.keys()
    for value, (first, last) in lives.items():
        assert places[value] % ALIGNMENT == 0
        assert places[value] + value.num_bytes <= num_bytes
        for other, (other_first, other_last) in lives.items():
            if other is not value and first <= other_last and other_first <= last:
                apart = places[value] + value.num_bytes <= places[other]
                assert apart or places[other] + other.num_bytes <= places[value]


def test_memory_is_used_again() -> None:
    values = [Value(row_count(1, largest=1), 1000, np.dtype(np.uint8)) for _ in range(50)]
    chain = [Operation(Function("", ""), list(pair)) for pair in itertools.pairwise(values)]
    _, num_bytes = _places(chain, [])
    assert num_bytes == 2 * 1024


def test_a_value_that_is_kept_has_memory_of_its_own_in_the_shape_of_its_rows(library: Library) -> None:
    rows = row_count(2, largest=4)
    ones = np.ones(8, np.float32)
    hidden = np.arange(32, dtype=np.float32).reshape(4, 8)
    recorder = Recorder(library)
    kept, later = recorder.value(rows, 8), recorder.value(rows, 8)
    recorder.append(ADD_NORM, rows, hidden, None, ones, kept, None, 8, 0.0)
    recorder.append(ADD_NORM, rows, kept, None, ones * 9, later, None, 8, 0.0)
    recorder.keep(kept)
    program, memory = recorder.finish()
    program.run()
    assert memory[kept].shape == (4, 8)
    np.testing.assert_allclose((memory[kept][:2] ** 2).mean(1), 1, rtol=1e-5)


def test_who_makes_a_value_quantises_it_where_it_can(library: Library) -> None:
    """Twice the same rows: from the operation that makes the value, and from an operation of their own."""
    rows = row_count(3)
    hidden = np.random.default_rng(0).standard_normal((6, 40), np.float32)
    weight = np.ones(40, np.float32)

    def record(recorder: Recorder, *, can: bool) -> list[Value]:
        normed = recorder.value(rows, 40)
        operation = recorder.append(ADD_NORM, rows, hidden, None, weight, normed, None, 40, 1e-6)
        if can:
            recorder.can_quantize(normed, operation, 5)
        quantized = recorder.quantized(normed)
        assert recorder.quantized(normed) is quantized
        assert (operation.arguments[5] is quantized) == can
        return [quantized]

    [on_the_way] = run_recorded(library, lambda recorder: record(recorder, can=True))
    [by_itself] = run_recorded(library, lambda recorder: record(recorder, can=False))
    used = 2 * 32 + 2 * 4 + 4 * 4
    np.testing.assert_array_equal(on_the_way[:, :used], by_itself[:, :used])
    assert on_the_way[:, :40].any()


def test_a_program_runs_in_two_parts(library: Library) -> None:
    rows, numbers, ones = row_count(2, largest=2), np.arange(16, dtype=np.float32).reshape(2, 8), np.ones(8, np.float32)
    outputs = [bound(rows, np.zeros((2, 8), np.float32)) for _ in range(3)]
    recorder = Recorder(library)
    recorder.append(ADD_NORM, rows, numbers, None, ones, outputs[0], None, 8, 0.0)
    recorder.split()
    recorder.append(ADD_NORM, rows, numbers, None, ones, outputs[1], None, 8, 0.0)
    recorder.append(ADD_NORM, rows, numbers, None, ones, outputs[2], None, 8, 0.0)
    program, _ = recorder.finish()

    def filled() -> list[bool]:
        return [output.memory is not None and bool(output.memory.any()) for output in outputs]

    program.run_first_part()
    assert filled() == [True, False, False]
    program.run_second_part()
    assert filled() == [True, True, True]
    np.testing.assert_array_equal(outputs[0].memory, outputs[2].memory)


def test_what_operations_point_to_lives_as_long_as_the_program(library: Library) -> None:
    hidden = np.ones((2, 8), np.float32)
    still_there = weakref.ref(hidden)
    rows = RowCount(np.array([2], np.int32), 2)
    recorder = Recorder(library)
    recorder.append(ADD_NORM, rows, hidden, None, np.ones(8, np.float32), recorder.value(rows, 8), None, 8, 0.0)
    program, _ = recorder.finish()
    del hidden, recorder
    gc.collect()
    assert still_there() is not None
    program.run()
    del program
    gc.collect()
    assert still_there() is None
