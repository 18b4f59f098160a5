"""Experts as one grouped product against gated MLPs written out in float64, one row and one expert at a time."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.kernels.interface import ExpertWeights
from limelight.kernels.reference import ReferenceKernels
from tests.kernels.batches import close, random

pytestmark = pytest.mark.usefixtures("one_torch_thread")
LIMIT = 0.9


def silu(value: float) -> float:
    return value / (1 + math.exp(-value))


ACTIVATIONS: dict[tuple[str, float | None], Callable[[float, float], float]] = {
    ("silu", None): lambda gate, up: silu(gate) * up,
    ("gelu", None): lambda gate, up: gate * (1 + math.erf(gate / math.sqrt(2))) / 2 * up,
    ("silu", LIMIT): lambda gate, up: (
        min(gate, LIMIT) / (1 + math.exp(-1.702 * min(gate, LIMIT))) * (min(max(up, -LIMIT), LIMIT) + 1)
    ),
}


def weights_of(
    num_experts: int,
    hidden: int,
    inner: int,
    *,
    biases: bool,
    activation: str = "silu",
    limit: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> ExpertWeights:
    return ExpertWeights(
        read_gate=lambda: random(num_experts, inner, hidden, seed=1).to(dtype),
        read_up=lambda: random(num_experts, inner, hidden, seed=2).to(dtype),
        read_down=lambda: random(num_experts, hidden, inner, seed=3).to(dtype),
        gate_bias=random(num_experts, inner, seed=4).to(dtype) if biases else None,
        up_bias=random(num_experts, inner, seed=5).to(dtype) if biases else None,
        down_bias=random(num_experts, hidden, seed=6).to(dtype) if biases else None,
        activation=activation,
        limit=limit,
    )


def exact_of(tensor: object) -> np.ndarray:
    assert isinstance(tensor, torch.Tensor)
    return tensor.double().numpy()


def by_hand(inputs: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, weights: ExpertWeights) -> np.ndarray:
    gated = ACTIVATIONS[weights.activation, weights.limit]
    exact = [
        (exact_of(read()), None if bias is None else exact_of(bias))
        for read, bias in (
            (weights.read_gate, weights.gate_bias),
            (weights.read_up, weights.up_bias),
            (weights.read_down, weights.down_bias),
        )
    ]

    def product(matrix: int, expert: int, values: np.ndarray) -> np.ndarray:
        weight, bias = exact[matrix]
        return weight[expert] @ values + (0.0 if bias is None else bias[expert])

    result = np.zeros(inputs.shape)
    for row, (experts, parts) in enumerate(zip(chosen.tolist(), shares.tolist(), strict=True)):
        for expert, share in zip(experts, parts, strict=True):
            both = [product(matrix, expert, exact_of(inputs[row])) for matrix in (0, 1)]
            inner = np.array([gated(gate, up) for gate, up in zip(*both, strict=True)])
            result[row] += share * product(2, expert, inner)
    return result


@pytest.mark.parametrize(("activation", "limit"), ACTIVATIONS)
@pytest.mark.parametrize("biases", [False, True])
def test_each_row_is_the_weighted_sum_of_its_experts(
    kernels: ReferenceKernels, activation: str, limit: float | None, biases: bool
) -> None:
    weights = weights_of(5, 8, 12, biases=biases, activation=activation, limit=limit)
    inputs, shares = random(4, 8), random(4, 2, seed=5)
    chosen = torch.tensor([[3, 0], [0, 3], [4, 3], [0, 4]])  # 1 and 2 idle
    ours = kernels.experts(inputs, chosen, shares, kernels.pack_experts(weights))
    close(ours, by_hand(inputs, chosen, shares, weights))


@settings(max_examples=40)
@given(
    tokens=st.integers(1, 9),
    num_experts=st.integers(1, 6),
    num_chosen=st.integers(1, 6),
    hidden=st.integers(1, 9),
    inner=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_any_sizes_will_do(tokens: int, num_experts: int, num_chosen: int, hidden: int, inner: int, seed: int) -> None:
    """Grouped products want rows at multiples of 16 bytes; what a model has is nobody's choice."""
    kernels = ReferenceKernels("cpu")
    weights = weights_of(num_experts, hidden, inner, biases=True)
    inputs, shares = random(tokens, hidden), random(tokens, min(num_chosen, num_experts), seed=5)
    chosen = random(tokens, num_experts, seed=seed).topk(shares.shape[1]).indices
    ours = kernels.experts(inputs, chosen, shares, kernels.pack_experts(weights))
    close(ours, by_hand(inputs, chosen, shares, weights), 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_are_kept_and_need_no_round_sizes(kernels: ReferenceKernels, dtype: torch.dtype) -> None:
    inputs, shares = random(4, 5), torch.full((4, 2), 0.5)
    chosen = torch.tensor([[0, 1], [2, 1], [1, 0], [1, 2]])
    narrow = weights_of(3, 5, 7, biases=True, dtype=dtype)
    ours = kernels.experts(inputs.to(dtype), chosen, shares, kernels.pack_experts(narrow))
    assert ours.dtype == dtype
    close(ours.float(), by_hand(inputs, chosen, shares, weights_of(3, 5, 7, biases=True)), 0.15)


def test_a_row_gets_the_same_alone_and_in_company(kernels: ReferenceKernels) -> None:
    packed = kernels.pack_experts(weights_of(4, 8, 8, biases=False))
    inputs, shares = random(6, 8), random(6, 2, seed=5)
    chosen = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [1, 0], [2, 1]])
    together = kernels.experts(inputs, chosen, shares, packed)
    for row in range(6):
        alone = kernels.experts(inputs[row : row + 1], chosen[row : row + 1], shares[row : row + 1], packed)
        close(alone[0], together[row], 1e-6)


def test_packing_keeps_the_tensors_where_it_can(kernels: ReferenceKernels) -> None:
    """Experts are most of a model: a copy would need its memory twice."""
    down = random(3, 8, 12)
    weights = msgspec.structs.replace(weights_of(3, 8, 12, biases=False), read_down=lambda: down)
    assert kernels.pack_experts(weights).down.data_ptr() == down.data_ptr()
