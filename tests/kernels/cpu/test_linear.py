"""Tests of `limelight.kernels.cpu.linear` and the products in C."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limelight.kernels.cpu import linear
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.packing import FORMATS, quantize_tensor
from limelight.kernels.cpu.recorder import Recorder, Value, bound
from limelight.kernels.cpu.threads import ThreadPool
from limelight.kernels.interface import LinearSegment, StoredTensor
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from limelight.models.gguf.blocks import PLAIN
from tests.kernels.cpu.recorded import row_count, run_recorded
from tests.kernels.cpu.stored_matrices import BLOCKS, QUANTIZED, dequantized, filled_matrix, stored_matrix, values_of

ROUNDING = 1e-5
"""Bound of what the sums of a product round, relative to the sum of the magnitudes of its terms."""
INPUT_SIZES = {32: 96, 256: 512}
"""By the size of a format's blocks."""
ROW_COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 70, 197]


def multiply(
    library: Library, inputs: NDArray[np.float32], packed: linear.PackedLinear, pool: ThreadPool | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The product, and the values of the inputs that were multiplied (rounded to int8 where a part has codes)."""

    def record(recorder: Recorder) -> list[Value]:
        memory = np.zeros((len(inputs) + 3, inputs.shape[1]), np.float32)
        memory[: len(inputs)] = inputs
        value = bound(row_count(len(inputs)), memory)
        result = linear.linear(recorder, value, packed)
        return [result] if value.quantized is None else [result, value.quantized]

    results = run_recorded(library, record, pool)
    used = dequantized(results[1], inputs.shape[1]) if len(results) > 1 else inputs.astype(np.float64)
    return results[0], used


def pack(library: Library, *weights: torch.Tensor | StoredTensor) -> linear.PackedLinear:
    return linear.pack_linear(library, [LinearSegment(weight=weight) for weight in weights])


def assert_close(result: NDArray[Any], inputs: NDArray[Any], weight: NDArray[Any], rounding: float = ROUNDING) -> None:
    largest_error = rounding * (abs(inputs) @ abs(weight).T) + 1e-30
    assert (abs(result - inputs @ weight.T) / largest_error).max() < 1.0


def random_rows(num_rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_rows, width), np.float32)


def random_matrix(name: str, num_outputs: int = 37, seed: int = 1) -> StoredTensor:
    return stored_matrix(name, num_outputs, INPUT_SIZES[BLOCKS[name].block_size], np.random.default_rng(seed))


@pytest.mark.parametrize("name", QUANTIZED)
def test_codes_are_multiplied_exactly_but_for_the_rounding_of_sums(library: Library, name: str) -> None:
    weight = random_matrix(name)
    packed = pack(library, weight)
    for num_rows in ROW_COUNTS:
        result, used = multiply(library, random_rows(num_rows, weight.shape[1]), packed)
        assert_close(result, used, values_of(weight))


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES.values(), torch.float64], ids=str)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(37, 83), (1, 1), (16, 259), (50, 520)])
def test_floats_are_multiplied_as_they_are(
    library: Library, num_outputs: int, num_inputs: int, dtype: torch.dtype
) -> None:
    weight = torch.from_numpy(random_rows(num_outputs, num_inputs, 1)).to(dtype)
    packed = pack(library, weight)
    for num_rows in ROW_COUNTS:
        inputs = random_rows(num_rows, num_inputs)
        result, _ = multiply(library, inputs, packed)
        assert_close(result, inputs.astype(np.float64), values_of(weight))


@pytest.mark.parametrize("name", QUANTIZED)
def test_rounding_inputs_to_int8_costs_at_most_half_a_step_of_each(library: Library, name: str) -> None:
    weight = random_matrix(name)
    inputs = random_rows(11, weight.shape[1])
    result, _ = multiply(library, inputs, pack(library, weight))
    reference = ReferenceKernels("cpu")
    values = torch.from_numpy(values_of(weight))
    exact = reference.linear(torch.from_numpy(inputs).double(), reference.pack_linear([LinearSegment(weight=values)]))
    steps = abs(inputs.reshape(11, -1, 32)).max(2, keepdims=True).repeat(32, 2).reshape(11, -1) / 127
    largest_error = (0.5 + 1e-4) * steps @ abs(values.numpy()).T + ROUNDING * abs(inputs) @ abs(values.numpy()).T
    error = abs(result - exact.numpy())
    assert (error <= largest_error).all()
    assert error.mean() < 0.1 * largest_error.mean(), "errors of rounding should cancel"


@pytest.mark.parametrize("name", [*QUANTIZED, "F32", "F16", "BF16"])
def test_a_row_gives_the_same_bits_whatever_is_beside_it_and_however_work_is_split(
    library: Library, pool: ThreadPool, name: str
) -> None:
    num_inputs = 1024
    weight = stored_matrix(name, 83, num_inputs, np.random.default_rng(2))
    packed = pack(library, weight)
    inputs = random_rows(400, num_inputs)
    whole, _ = multiply(library, inputs, packed)
    for num_rows in [1, 2, 3, 4, 5, 8, 9, 15, 100, 193, 399]:
        for threads in (None, pool):
            part, _ = multiply(library, inputs[-num_rows:], packed, threads)
            np.testing.assert_array_equal(part, whole[-num_rows:])


@pytest.mark.parametrize("name", [*QUANTIZED, "F16", "BF16"])
def test_panels_give_the_same_bits_unpacked_and_as_they_are(library: Library, name: str) -> None:
    packed = pack(library, stored_matrix(name, 35, 1024, np.random.default_rng(4)))
    [part] = packed.parts
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 8, 21):
        inputs = random_rows(num_rows, 1024)
        as_packed, unpacked = (
            multiply(library, inputs, packed._replace(parts=(part._replace(rows_as_packed=limit),)))[0]
            for limit in (num_rows, num_rows - 1)
        )
        np.testing.assert_array_equal(as_packed, unpacked)


@settings(max_examples=30)
@given(data=st.data())
def test_segments_of_any_formats_and_sizes_lie_side_by_side(library: Library, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([*QUANTIZED, "F32", "F16", "BF16"]), min_size=1, max_size=4))
    num_rows = data.draw(st.integers(1, 20))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    segments = []
    for name in names:
        weight = stored_matrix(name, data.draw(st.integers(1, 70)), 256, generator)
        bias = torch.from_numpy(generator.standard_normal(weight.shape[0]).astype(np.float32))
        segments.append(LinearSegment(weight=weight, bias=bias if data.draw(st.booleans()) else None))
    packed = linear.pack_linear(library, segments)
    inputs = random_rows(num_rows, 256)
    result, used = multiply(library, inputs, packed)
    first = 0
    for name, segment in zip(names, segments, strict=True):
        values, bias = values_of(segment.weight), 0.0 if segment.bias is None else segment.bias.numpy()
        of_segment = result[:, first : first + len(values)].astype(np.float64) - bias
        rows = used if name in QUANTIZED else inputs.astype(np.float64)
        largest_error = ROUNDING * (abs(rows) @ abs(values).T + abs(bias))
        assert (abs(of_segment - rows @ values.T) <= largest_error).all()
        first += len(values)
    assert packed.num_outputs == first


def test_segments_with_different_inputs_are_refused(library: Library) -> None:
    with pytest.raises(ValueError, match=r"input sizes \[8, 9\]"):
        pack(library, torch.zeros(4, 8), torch.zeros(4, 9))


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("name", QUANTIZED)
def test_the_largest_codes_do_not_overflow(library: Library, name: str, byte: int) -> None:
    weight = filled_matrix(name, byte, 17, 256)
    packed = pack(library, weight)
    for num_rows in (1, 2, 3, 4, 9, 10, 11, 12):
        for inputs in (np.ones((num_rows, 256), np.float32), -np.ones((num_rows, 256), np.float32)):
            result, used = multiply(library, inputs, packed)
            assert_close(result, used, values_of(weight))


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K", "F16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_says_so_and_leaves_others_alone(library: Library, name: str, value: float) -> None:
    weight = stored_matrix(name, 37, 512, np.random.default_rng(1))
    for num_rows in (3, 12):
        inputs = random_rows(num_rows, 512)
        packed = pack(library, weight)
        expected, _ = multiply(library, inputs, packed)
        inputs[1, 77] = value
        result, _ = multiply(library, inputs, packed)
        assert not np.isfinite(result[1]).any()
        np.testing.assert_array_equal(np.delete(result, 1, 0), np.delete(expected, 1, 0))


@pytest.mark.parametrize("magnitude", [0.0, 1e-42, 1e-20, 1e30])
@pytest.mark.parametrize("scale", [6e-8, 1.0, 6e4])
@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q4_K"])
def test_zeros_and_very_small_and_large_numbers(library: Library, name: str, scale: float, magnitude: float) -> None:
    weight = stored_matrix(name, 20, 512, np.random.default_rng(1), scale=scale / 4)
    inputs = (random_rows(9, 512) * magnitude).astype(np.float32)
    result, used = multiply(library, inputs, pack(library, weight))
    assert_close(result, used, values_of(weight))
    if magnitude == 0.0:
        assert not result.any()


@pytest.mark.parametrize("scale", [1.0, 24.083])
@pytest.mark.parametrize("name", [*QUANTIZED, "F32", "F16", "BF16"])
def test_rows_are_read_out_of_a_packed_matrix_exactly(library: Library, name: str, scale: float) -> None:
    table = stored_matrix(name, 53, 512, np.random.default_rng(3))
    packed, head = linear.pack_embedding(library, table, is_head=True)
    assert head is packed
    token_ids = np.array([52, 0, 15, 16, 17, 0], np.int32)

    def record(recorder: Recorder) -> list[Value]:
        return [linear.embed(recorder, bound(row_count(6, 6), token_ids), packed, scale)]

    [rows] = run_recorded(library, record)
    # Rounded as with a tensor of numbers that narrow.
    used = float(torch.tensor(scale).to(TORCH_DTYPES[PLAIN.get(name, "float32")]))
    expected = values_of(table).astype(np.float32)[token_ids] * np.float32(used)
    np.testing.assert_array_equal(rows, expected)


def test_the_scale_of_embeddings_is_rounded_to_the_dtype_of_the_table(library: Library) -> None:
    table = torch.from_numpy(random_rows(5, 24)).to(torch.bfloat16)
    packed, head = linear.pack_embedding(library, table, is_head=False)
    assert head is None

    def record(recorder: Recorder) -> list[Value]:
        return [linear.embed(recorder, bound(row_count(2, 2), np.array([4, 1], np.int32)), packed, 24.083)]

    [rows] = run_recorded(library, record)
    np.testing.assert_array_equal(rows, table[[4, 1]].float().numpy() * float(torch.tensor(24.083).bfloat16()))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("num_inputs", [1, 31, 33, 70, 96])
def test_matrices_quantised_here_may_have_any_size(library: Library, num_inputs: int, name: str) -> None:
    exact = torch.from_numpy(random_rows(19, num_inputs, 5))
    packed = pack(library, quantize_tensor(library, exact, name))
    identity = np.eye(num_inputs, dtype=np.float32)
    result, _ = multiply(library, identity, packed)
    step = 3.0 / 127 if name == "Q8_0" else 6.0 / 15
    assert abs(result.T - exact.numpy()).max() < step
    table, _ = linear.pack_embedding(library, quantize_tensor(library, exact, name), is_head=False)

    def record(recorder: Recorder) -> list[Value]:
        return [linear.embed(recorder, bound(row_count(19, 19), np.arange(19, dtype=np.int32)), table, 1.0)]

    [rows] = run_recorded(library, record)
    np.testing.assert_allclose(rows, result.T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_matrix_takes_what_is_said(library: Library, name: str) -> None:
    for num_outputs in (16, 33):
        weight = stored_matrix(name, num_outputs, 512, np.random.default_rng(0))
        assert pack(library, weight).memory.size == -(-linear.packed_bytes((num_outputs, 512), name) // 64) * 64
