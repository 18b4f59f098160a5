"""Norms, gates, picked rows and capped logits against the reference kernels and formulas in float64."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from limelight.kernels.cpu import elementwise
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import QUANTIZE, Recorder, Value, bound
from limelight.kernels.reference import ReferenceKernels
from tests.kernels.cpu.recorded import row_count, run_recorded

pytestmark = pytest.mark.usefixtures("one_torch_thread")

WIDTHS = (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 576, 1537, 4096, 8200)
GATES = [("silu", None), ("gelu_tanh", None), ("gelu", None), ("silu", 7.0)]
GROUP_BYTES = 48
"""Of 32 quantised numbers; behind the last group of a row there may be anything."""
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 88.5, -88.5, -87.0, 1e-30, -1e-30, 7.0, -7.0)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)


def held(values: NDArray[np.float32]) -> Value:
    """A value that is there before the pass runs, in memory with room for more rows than there are."""
    rows = row_count(len(values))
    memory = np.full((rows.largest, values.shape[1]), np.nan, np.float32)
    memory[: len(values)] = values
    return bound(rows, memory)


def run_gate(
    library: Library, gate_up: NDArray[np.float32], activation: str, limit: float | None
) -> NDArray[np.float32]:
    [result] = run_recorded(library, lambda recorder: [elementwise.gate(recorder, held(gate_up), activation, limit)])
    return result


# ---- norms


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norm_agrees_with_the_reference(
    library: Library, kernels: ReferenceKernels, width: int, dtype: torch.dtype
) -> None:
    hidden, residual = normal(6, width, seed=1), normal(6, width, seed=2)
    weight = torch.tensor(normal(2 * width, seed=3)).to(dtype)[::2]
    normed, total = run_recorded(
        library, lambda recorder: elementwise.add_norm(recorder, held(hidden), held(residual), weight, 1e-5)
    )
    expected = kernels.add_norm(torch.tensor(hidden), torch.tensor(residual), weight.float(), 1e-5)
    np.testing.assert_allclose(normed, expected[0].numpy(), rtol=2e-6, atol=1e-7)
    np.testing.assert_array_equal(total, expected[1].numpy())


def test_norm_without_a_residual_leaves_its_input_as_the_sum(library: Library, kernels: ReferenceKernels) -> None:
    hidden, weight = held(normal(3, 40)), torch.tensor(normal(40, seed=1))
    before = normal(3, 40)

    def record(recorder: Recorder) -> tuple[Value, Value]:
        normed, total = elementwise.add_norm(recorder, hidden, None, weight, 1e-3)
        assert total is hidden
        return normed, total

    normed, total = run_recorded(library, record)
    expected, _ = kernels.add_norm(torch.tensor(before), None, weight, 1e-3)
    np.testing.assert_allclose(normed, expected.numpy(), rtol=2e-6, atol=1e-7)
    np.testing.assert_array_equal(total, before)


def test_what_is_not_a_number_stays_in_its_row(library: Library) -> None:
    hidden = normal(3, 20)
    hidden[1, 3] = np.nan
    normed, _ = run_recorded(
        library, lambda recorder: elementwise.add_norm(recorder, held(hidden), None, torch.ones(20), 1e-5)
    )
    assert np.isnan(normed[1]).all()
    assert np.isfinite(normed[[0, 2]]).all()


# ---- gates


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("activation", "limit"), GATES)
def test_gate_agrees_with_the_reference(
    library: Library, kernels: ReferenceKernels, width: int, activation: str, limit: float | None
) -> None:
    gate_up = normal(9, 2 * width, seed=width, scale=4.0)
    expected = kernels.gate(torch.tensor(gate_up), activation, limit).numpy()
    result = run_gate(library, gate_up, activation, limit)
    # gelu: one part in a million of gate * up, for the reference takes the difference of two numbers near 1.
    of = np.abs(gate_up[:, :width] * gate_up[:, width:]) if activation != "silu" else np.abs(expected)
    assert (np.abs(result - expected) <= 1e-6 * of + 1e-9).all()


@pytest.mark.parametrize(("activation", "limit"), GATES)
def test_gate_is_exact_far_from_zero_on_both_sides(library: Library, activation: str, limit: float | None) -> None:
    gate = np.linspace(-9.0, 9.0, 5000, dtype=np.float32)
    result = run_gate(library, np.concatenate((gate, np.ones_like(gate)))[None], activation, limit)[0]
    x = gate.astype(np.float64)
    if limit is not None:
        x = np.minimum(x, limit)
        expected = x / (1 + np.exp(-1.702 * x)) * 2
    elif activation == "silu":
        expected = x / (1 + np.exp(-x))
    elif activation == "gelu":
        expected = x * np.array([math.erfc(-value / math.sqrt(2)) for value in x]) / 2
    else:
        expected = x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    # Where the result is e**-y, its error grows with y: that of y, rounded.
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-37)
    np.testing.assert_allclose(result[gate > -2], expected[gate > -2], rtol=1e-6)


@pytest.mark.parametrize(("activation", "limit"), GATES)
def test_gate_of_extreme_numbers_is_the_references(
    library: Library, kernels: ReferenceKernels, activation: str, limit: float | None
) -> None:
    pairs = np.array([(gate, up) for gate in SPECIAL for up in SPECIAL], np.float32)
    gate_up = np.concatenate((pairs[:, 0], pairs[:, 1]))[None]
    expected = kernels.gate(torch.tensor(gate_up), activation, limit).numpy()
    result = run_gate(library, gate_up, activation, limit)
    # Not compared: activations of far negative numbers, which become zero sooner or later than the reference's do.
    compared = (pairs[:, 0] > -5) | ~np.isfinite(pairs[:, 0])
    np.testing.assert_allclose(result[0, compared], expected[0, compared], rtol=2e-6, atol=1e-35)


def test_gate_of_a_number_is_the_same_wherever_it_stands(library: Library) -> None:
    gate_up = normal(1, 2 * 37)
    alone = run_gate(library, gate_up, "silu", None)
    among = run_gate(library, np.concatenate((normal(9, 2 * 37, seed=5), gate_up)), "silu", None)
    np.testing.assert_array_equal(alone[0], among[9])
    single = run_gate(library, np.ascontiguousarray(gate_up[:, [36, 73]]), "silu", None)
    assert single[0, 0] == alone[0, 36]


def test_an_unknown_activation_is_refused(library: Library) -> None:
    with pytest.raises(ValueError, match="'relu'; there are silu, gelu_tanh, gelu"):
        run_gate(library, normal(1, 4), "relu", None)


@pytest.mark.parametrize("width", [5, 32, 100, 576, 4096, 9000])
def test_rows_quantised_on_the_way_are_those_of_the_operation(library: Library, width: int) -> None:
    gate_up = normal(5, 2 * width)

    def record(recorder: Recorder) -> list[Value]:
        hidden, residual, weight = held(normal(5, width, seed=1)), held(normal(5, width, seed=2)), torch.ones(width)
        results = []
        for value in (
            elementwise.gate(recorder, held(gate_up), "silu", None),
            elementwise.add_norm(recorder, hidden, residual, weight, 1e-5)[0],
        ):
            quantized = recorder.quantized(value)
            assert value.quantizer is not None
            afterwards = recorder.value(value.rows, quantized.width, np.uint8)
            recorder.append(QUANTIZE, value.rows, value, afterwards, value.width)
            results += [quantized, afterwards]
        return results

    gated, gated_after, normed, normed_after = run_recorded(library, record)
    written = -(-width // 32) * GROUP_BYTES
    np.testing.assert_array_equal(gated[:, :written], gated_after[:, :written])
    np.testing.assert_array_equal(normed[:, :written], normed_after[:, :written])
    assert gated[:, :written].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_add_gated_adds_a_share_of_the_values(library: Library, width: int) -> None:
    outputs, values = normal(7, width, seed=1), normal(7, width, seed=2)
    scores = np.array([[0.0], [1.0], [-3.0], [30.0], [-200.0], [np.inf], [-np.inf]], np.float32)

    def record(recorder: Recorder) -> list[Value]:
        sums = held(outputs)
        assert elementwise.add_gated(recorder, sums, held(scores), held(values)) is sums
        return [sums]

    [result] = run_recorded(library, record)
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-scores.astype(np.float64)))
    np.testing.assert_allclose(result, outputs + share * values, rtol=1e-6, atol=1e-6)


# ---- rows and logits


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_rows_are_picked_in_any_order(library: Library, dtype: type) -> None:
    values = np.random.default_rng(0).integers(0, 200, (30, 9)).astype(dtype)
    rows = np.random.default_rng(1).integers(0, 30, 20).astype(np.int32)
    count = row_count(20)
    indices = np.full(count.largest, -1, np.int32)
    indices[:20] = rows

    def record(recorder: Recorder) -> list[Value]:
        return [elementwise.select_rows(recorder, bound(row_count(30, 30), values), bound(count, indices))]

    [result] = run_recorded(library, record)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, values[rows])


@pytest.mark.parametrize("width", [1, 13, 8192, 8193, 20_000])
def test_logits_are_capped_by_a_hyperbolic_tangent(library: Library, width: int) -> None:
    values = normal(3, width, scale=30.0)
    values[0, :1], values[1, :1], values[2, :1] = np.inf, -np.inf, np.nan

    def record(recorder: Recorder) -> list[Value]:
        value = held(values)
        assert elementwise.logits(recorder, value, None) is value
        return [elementwise.logits(recorder, value, 30.0)]

    [result] = run_recorded(library, record)
    np.testing.assert_allclose(result, 30 * np.tanh(values.astype(np.float64) / 30), rtol=5e-7)


def test_a_small_logit_keeps_its_relative_precision_under_a_cap(library: Library) -> None:
    values = np.geomspace(1e-6, 20.0, 4000, dtype=np.float32)[None]
    [result] = run_recorded(library, lambda recorder: [elementwise.logits(recorder, held(values), 30.0)])
    np.testing.assert_allclose(result, 30 * np.tanh(values.astype(np.float64) / 30), rtol=5e-7)
