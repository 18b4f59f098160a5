"""Kernels round once where the reference, a chain of operations, rounds several times: in bfloat16 and float16 they may
differ by a few units of the last place.
"""

import pytest
import torch
from torch import Tensor

from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.triton import elementwise

pytestmark = pytest.mark.usefixtures("one_torch_thread")

REFERENCE = ReferenceKernels("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Relative to the largest value of a row, which is about one or more."""


def rows(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    bound = BOUNDS[expected.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 80, 1024, 1030])
@pytest.mark.parametrize("exact_weight", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
def test_add_norm(dtype: torch.dtype, size: int, exact_weight: bool, has_residual: bool) -> None:
    hidden, weight = rows(3, size, dtype=dtype, scale=3), rows(size, dtype=torch.float32 if exact_weight else dtype)
    residual = rows(3, size, dtype=dtype, seed=1) if has_residual else None
    hidden[1] = 0
    expected, total = REFERENCE.add_norm(hidden, residual, weight, 1e-6)
    normed, actual_total = elementwise.add_norm(hidden, residual, weight, 1e-6)
    assert_close(normed, expected)
    assert torch.equal(actual_total, total)


def test_the_norm_of_large_values_does_not_overflow() -> None:
    hidden = torch.full((1, 512), 30000.0, dtype=torch.float16)
    normed, _ = elementwise.add_norm(hidden, None, torch.ones(512, dtype=torch.float16), 1e-6)
    assert torch.equal(normed, torch.ones_like(normed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 1024, 1500])
@pytest.mark.parametrize(("activation", "limit"), [("silu", None), ("gelu_tanh", None), ("gelu", None), ("silu", 2.5)])
def test_gate(dtype: torch.dtype, size: int, activation: str, limit: float | None) -> None:
    gate_up = rows(3, 2 * size, dtype=dtype, scale=2)
    gate_up[0, :1], gate_up[1, :1], gate_up[0, -1:] = -300, 300, -4
    assert_close(elementwise.gate(gate_up, activation, limit), REFERENCE.gate(gate_up, activation, limit))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("scale", [1.0, 33.3])
def test_embed(dtype: torch.dtype, id_dtype: torch.dtype, scale: float) -> None:
    table, token_ids = rows(11, 1100, dtype=dtype), torch.tensor([10, 0, 3, 3], dtype=id_dtype)
    assert torch.equal(elementwise.embed(token_ids, table, scale), REFERENCE.embed(token_ids, table, scale))


@pytest.mark.parametrize("dtype", DTYPES)
def test_capped_logits(dtype: torch.dtype) -> None:
    values = rows(2, 1500, dtype=dtype, scale=30)
    values[0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 6e4])
    expected = REFERENCE.logits(values.clone(), 30.0)
    actual = elementwise.capped_logits(values, 30.0)
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_gated(dtype: torch.dtype) -> None:
    outputs, values = rows(3, 1500, dtype=dtype), rows(3, 1500, dtype=dtype, seed=1)
    scores = rows(3, 1, dtype=dtype, seed=2)
    expected = REFERENCE.add_gated(outputs, scores, values)
    assert_close(elementwise.add_gated(outputs, scores, values), expected)
