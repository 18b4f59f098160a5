"""Rotary embedding, QK-norm and writing to the pool, in C, against the reference."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from limelight.kernels.cpu import attention
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Recorder, Value
from limelight.kernels.interface import AttentionSettings
from limelight.kernels.reference import ReferenceKernels, ReferenceKV
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from tests.kernels.cpu.attention_steps import Shape, Step, normal, pool_of_nan
from tests.kernels.cpu.recorded import run_recorded

pytestmark = pytest.mark.usefixtures("one_torch_thread")

EPSILON = 1e-5
CHUNKS = [(1, 1), (23, 23), (9, 9)]


def tables(rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(64.0), 1e4 ** -(torch.arange(rotary_dim // 2) * 2.0 / rotary_dim))
    return angles.cos(), angles.sin()


def ours(
    library: Library, step: Step, shape: Shape, qkv: NDArray[np.float32], norms: Any, rotary_dim: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Queries, and the attention of them over what was written."""
    kv = pool_of_nan(shape.layout(step.num_pages))

    def record(recorder: Recorder) -> list[Value]:
        plan = attention.AttentionPlan(step.buffers, kv)
        rotation = attention.rotation(*tables(rotary_dim), step.buffers)
        queries = attention.rotate_and_write(
            recorder, kv, 0, step.value(qkv), rotation, plan, norms[0], norms[1], EPSILON
        )
        return [queries, attention.attend(recorder, kv, 0, queries, plan, AttentionSettings(scale=0.3))]

    queries, attended = run_recorded(library, record)
    return queries, attended


def reference(
    step: Step, shape: Shape, qkv: NDArray[np.float32], norms: Any, rotary_dim: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The same in float32, keys and values rounded to the pool's dtype in between."""
    kernels = ReferenceKernels("cpu")
    exact = Shape(shape.heads, shape.kv_heads, shape.head_dim, shape.page_size)
    kv: ReferenceKV = kernels.allocate_kv(exact.layout(step.num_pages))
    plan = kernels.plan(step.batch, kv)
    rotation = kernels.rotation(*tables(rotary_dim), step.batch)
    rows = torch.from_numpy(qkv).flatten(1).clone()
    queries = kernels.rotate_and_write(kv, 0, rows, rotation, plan, norms[0], norms[1], EPSILON)
    kv.layers[0].copy_(kv.layers[0].to(shape.dtype).float())
    attended = kernels.attend(kv, 0, queries, plan, AttentionSettings(scale=0.3))
    return queries.flatten(1).numpy(), attended.numpy()


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # A key near the middle between two numbers of the pool's dtype may be rounded to either.
    [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)],
)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (3, 1, 20), (6, 6, 8)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("page_size", [8, 16, 64])
def test_queries_are_rotated_and_keys_and_values_written(
    library: Library,
    dtype: torch.dtype,
    tolerance: float,
    heads: int,
    kv_heads: int,
    head_dim: int,
    normed: bool,
    page_size: int,
) -> None:
    shape = Shape(heads, kv_heads, head_dim, page_size, dtype)
    step = Step(CHUNKS, page_size)
    qkv = normal(len(step), heads + 2 * kv_heads, head_dim, seed=1)
    weights = [torch.from_numpy(normal(head_dim, seed=seed)).bfloat16() for seed in (2, 3)]
    norms = [weights[0].float(), weights[1].float()] if normed else [None, None]
    queries, attended = ours(library, step, shape, qkv, weights if normed else norms, head_dim)
    wanted_queries, wanted = reference(step, shape, qkv, norms, head_dim)
    np.testing.assert_allclose(queries, wanted_queries, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(attended, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("normed", [(False, True), (True, False)])
@pytest.mark.parametrize("rotary_dim", [4, 10, 32])
def test_the_dimensions_behind_the_rotary_ones_stay(
    library: Library, normed: tuple[bool, bool], rotary_dim: int
) -> None:
    shape = Shape(4, 2, 40)
    step = Step(CHUNKS, shape.page_size)
    qkv = normal(len(step), 8, 40, seed=1)
    norms = [torch.linspace(0.5, 2, 40) if is_normed else None for is_normed in normed]
    queries, attended = ours(library, step, shape, qkv, norms, rotary_dim)
    wanted_queries, wanted = reference(step, shape, qkv, norms, rotary_dim)
    np.testing.assert_allclose(queries, wanted_queries, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(attended, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [TORCH_DTYPES[name] for name in attention.TYPES], ids=str)
@pytest.mark.parametrize("page_size", attention.PAGE_SIZES)
def test_a_step_writes_its_own_slots_and_no_others(library: Library, dtype: torch.dtype, page_size: int) -> None:
    shape = Shape(2, 2, 9, page_size, dtype)
    kv = pool_of_nan(shape.layout(20))
    step = Step([(3, page_size + 1)], page_size, [[5, 18]])

    def record(recorder: Recorder) -> list[Value]:
        plan = attention.AttentionPlan(step.buffers, kv)
        zeros = np.zeros((3, 2, 9), np.float32)
        attention.write(recorder, kv, 1, step.value(zeros), step.value(zeros), plan)
        return []

    run_recorded(library, record)
    assert (kv.layers[0] == 0xFF).all()
    runs = kv.layers[1].reshape(-1, 2, attention.PAGES_OF_A_RUN, page_size, (9 + 10) * dtype.itemsize)
    written = np.count_nonzero(runs == 0, axis=(3, 4)) / runs.shape[-1]
    tokens = np.zeros_like(written)
    tokens[0, :, 5], tokens[1, :, 18 - attention.PAGES_OF_A_RUN] = 2, 1
    np.testing.assert_array_equal(written, tokens)
