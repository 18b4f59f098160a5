"""Tests of experts in C, against `ReferenceKernels` in float64."""

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limelight.kernels.cpu import elementwise
from limelight.kernels.cpu.experts import PackedExperts, experts, pack_experts
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.linear import linear, pack_linear
from limelight.kernels.cpu.packing import FORMATS
from limelight.kernels.cpu.recorder import Recorder, Value, bound
from limelight.kernels.interface import ExpertWeights, LinearSegment, StoredTensor
from limelight.kernels.reference import ReferenceKernels
from tests.kernels.batches import random
from tests.kernels.cpu.recorded import row_count, run_recorded
from tests.kernels.cpu.stored_matrices import stored_matrix

Matrix = tuple[torch.Tensor, torch.Tensor | None]
Choice = tuple[NDArray[np.int32], NDArray[np.float32]]


def weights_of(
    num_experts: int,
    hidden: int,
    inner: int,
    *,
    outputs: int | None = None,
    biases: bool = False,
    activation: str = "silu",
    limit: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> ExpertWeights:
    outputs = hidden if outputs is None else outputs
    gate = random(num_experts, inner, hidden, seed=1).to(dtype)
    up = random(num_experts, inner, hidden, seed=2).to(dtype)
    down = random(num_experts, outputs, inner, seed=3).to(dtype)
    return ExpertWeights(
        read_gate=lambda: gate,
        read_up=lambda: up,
        read_down=lambda: down,
        gate_bias=random(num_experts, inner, seed=4).to(dtype) if biases else None,
        up_bias=random(num_experts, inner, seed=5).to(dtype) if biases else None,
        down_bias=random(num_experts, outputs, seed=6).to(dtype) if biases else None,
        activation=activation,
        limit=limit,
    )


def choose(num_rows: int, num_experts: int, num_chosen: int, seed: int) -> Choice:
    """Random experts and shares; few experts are favourites, and some are idle."""
    generator = np.random.default_rng(seed)
    favour = generator.standard_normal(num_experts) * 2
    scores = generator.standard_normal((num_rows, num_experts)) + favour
    chosen = np.argsort(-scores, 1)[:, :num_chosen].astype(np.int32)
    return chosen, generator.random((num_rows, num_chosen), np.float32)


def summed(library: Library, inputs: NDArray[np.float32], choice: Choice, packed: PackedExperts) -> NDArray[np.float32]:
    def record(recorder: Recorder) -> list[Value]:
        rows = row_count(len(inputs), largest=len(inputs))
        chosen, shares = (bound(rows, part) for part in choice)
        return [experts(recorder, bound(rows, inputs), chosen, shares, packed)]

    return run_recorded(library, record)[0]


def exact_of(tensor: object) -> torch.Tensor:
    assert isinstance(tensor, torch.Tensor)
    return tensor.double()


def expected(inputs: NDArray[np.float32], choice: Choice, weights: ExpertWeights) -> NDArray[np.float64]:
    """One row and one expert at a time, in float64."""
    kernels = ReferenceKernels("cpu")
    exact = torch.from_numpy(inputs).double()
    gate, up, down = (
        (exact_of(read()), None if bias is None else exact_of(bias))
        for read, bias in (
            (weights.read_gate, weights.gate_bias),
            (weights.read_up, weights.up_bias),
            (weights.read_down, weights.down_bias),
        )
    )

    def product(matrix: Matrix, expert: int, values: torch.Tensor) -> torch.Tensor:
        weight, bias = matrix
        return weight[expert] @ values + (0.0 if bias is None else bias[expert])

    results = []
    for row, (chosen, shares) in enumerate(zip(*choice, strict=True)):
        total = torch.zeros(down[0].shape[1], dtype=torch.float64)
        for expert, share in zip(chosen.tolist(), shares.tolist(), strict=True):
            both = torch.cat((product(gate, expert, exact[row]), product(up, expert, exact[row])))
            total += share * product(down, expert, kernels.gate(both, weights.activation, weights.limit))
        results.append(total)
    return torch.stack(results).numpy()


@settings(max_examples=40)
@given(
    num_rows=st.integers(1, 70),
    num_experts=st.integers(1, 128),
    num_chosen=st.integers(1, 8),
    hidden=st.integers(1, 100),
    inner=st.integers(1, 140),
    outputs=st.integers(1, 100),
    biases=st.booleans(),
    activation=st.sampled_from([("silu", None), ("gelu", None), ("gelu_tanh", None), ("silu", 0.9)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_each_row_is_the_weighted_sum_of_its_experts(
    library: Library,
    num_rows: int,
    num_experts: int,
    num_chosen: int,
    hidden: int,
    inner: int,
    outputs: int,
    biases: bool,
    activation: tuple[str, float | None],
    dtype: torch.dtype,
    seed: int,
) -> None:
    name, limit = activation
    weights = weights_of(
        num_experts, hidden, inner, outputs=outputs, biases=biases, activation=name, limit=limit, dtype=dtype
    )
    inputs = random(num_rows, hidden, seed=seed).numpy()
    choice = choose(num_rows, num_experts, min(num_chosen, num_experts), seed)
    ours = summed(library, inputs, choice, pack_experts(library, weights))
    right = expected(inputs, choice, weights)
    np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(right).max())))


def test_all_rows_may_take_the_same_experts(library: Library) -> None:
    weights = weights_of(6, 24, 16)
    inputs = random(70, 24).numpy()
    choice = np.tile(np.array([4, 1], np.int32), (70, 1)), np.tile(np.array([0.75, 0.25], np.float32), (70, 1))
    ours = summed(library, inputs, choice, pack_experts(library, weights))
    np.testing.assert_allclose(ours, expected(inputs, choice, weights), rtol=1e-4, atol=1e-4)


def check_bits_alone(library: Library, inputs: NDArray[np.float32], choice: Choice, packed: PackedExperts) -> None:
    chosen, shares = choice
    together = summed(library, inputs, choice, packed)
    for row in range(len(inputs)):
        alone = summed(library, inputs[row : row + 1], (chosen[row : row + 1], shares[row : row + 1]), packed)
        np.testing.assert_array_equal(alone[0], together[row])


def test_a_row_gets_the_same_bits_alone_and_in_a_batch(library: Library) -> None:
    """Whichever rows have chosen the same experts; the favourites have more rows than are multiplied at once."""
    packed = pack_experts(library, weights_of(12, 101, 130, biases=True))
    check_bits_alone(library, random(150, 101).numpy(), choose(150, 12, 4, 0), packed)


def test_with_quantised_experts_too(library: Library) -> None:
    gates, ups = stored_experts("Q4_K", 6, 256, 256, 1), stored_experts("Q4_K", 6, 256, 256, 2)
    downs = stored_experts("Q6_K", 6, 100, 256, 3)
    packed = pack_experts(library, ExpertWeights(read_gate=lambda: gates, read_up=lambda: ups, read_down=lambda: downs))
    check_bits_alone(library, random(150, 256).numpy(), choose(150, 6, 3, 0), packed)


def test_an_expert_that_no_row_chose_is_not_read(library: Library) -> None:
    weights = weights_of(4, 16, 16)
    for read in (weights.read_gate, weights.read_up, weights.read_down):
        cast("torch.Tensor", read())[2] = torch.nan
    choice = np.array([[0, 1], [3, 0]], np.int32), np.ones((2, 2), np.float32)
    assert np.isfinite(summed(library, random(2, 16).numpy(), choice, pack_experts(library, weights))).all()


def stored_experts(name: str, num_experts: int, num_outputs: int, num_inputs: int, seed: int) -> StoredTensor:
    """Random blocks; the matrices of the experts one after the other, as files hold them."""
    generator = np.random.default_rng(seed)
    matrices = [stored_matrix(name, num_outputs, num_inputs, generator).rows for _ in range(num_experts)]
    rows = np.stack(matrices).reshape(num_experts, -1)
    return StoredTensor(name, (num_experts, num_outputs, num_inputs), rows)


def one_of(weight: StoredTensor, expert: int) -> LinearSegment:
    _, num_outputs, num_inputs = weight.shape
    rows = weight.rows[expert].reshape(num_outputs, -1)
    return LinearSegment(weight=StoredTensor(weight.format, (num_outputs, num_inputs), rows))


@pytest.mark.parametrize(
    ("gate", "up", "down"),
    [
        *((name, name, name) for name in sorted(FORMATS)),
        ("Q4_K", "Q5_K", "Q6_K"),
        ("Q8_0", "Q8_0", "BF16"),
        ("Q4_K", "F16", "Q8_0"),
        ("BF16", "Q4_1", "F32"),
    ],
)
def test_an_expert_gives_the_bits_of_three_projections(library: Library, gate: str, up: str, down: str) -> None:
    """In every format that files hold experts in, and in mixtures of them."""
    gates, ups = stored_experts(gate, 5, 256, 512, 1), stored_experts(up, 5, 256, 512, 2)
    downs = stored_experts(down, 5, 72, 256, 3)
    weights = ExpertWeights(read_gate=lambda: gates, read_up=lambda: ups, read_down=lambda: downs)
    inputs = random(20, 512).numpy()
    owners = np.random.default_rng(0).integers(0, 5, 20).astype(np.int32)
    owners[3:9] = 4
    ours = summed(library, inputs, (owners[:, None], np.ones((20, 1), np.float32)), pack_experts(library, weights))
    for expert in set(owners.tolist()):
        rows = inputs[owners == expert]

        def record(recorder: Recorder, expert: int = expert, rows: NDArray[np.float32] = rows) -> list[Value]:
            value = bound(row_count(len(rows), largest=len(rows)), rows)
            gate_up = linear(recorder, value, pack_linear(library, [one_of(gates, expert), one_of(ups, expert)]))
            gated = elementwise.gate(recorder, gate_up, "silu", None)
            return [linear(recorder, gated, pack_linear(library, [one_of(downs, expert)]))]

        np.testing.assert_array_equal(ours[owners == expert], run_recorded(library, record)[0])
