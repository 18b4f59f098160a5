"""Filling the KV pool in Triton's interpreter against the reference."""

import pytest
import torch

from limelight.kernels.interface import KVLayout
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.torch_dtypes import name_of
from limelight.kernels.triton.kv import Rotation, TritonKV, allocate_kv, rotate_and_write, write
from tests.kernels.batches import random
from tests.kernels.triton.row_batches import Step, step_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_PAGES = 12
CHUNKS = [(1, 13), (6, 6), (1, 33), (18, 35), (1, 1)]
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3.2e-2}
POISON = 12.0
"""What the pools hold before: unlike NaN, equal to itself."""


def layout_of(page_size: int, kv_heads: int, head_dim: int, dtype: str) -> KVLayout:
    return KVLayout(
        num_layers=2,
        num_pages=NUM_PAGES,
        page_size=page_size,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
    )


def poisoned(layout: KVLayout, capability: int = 90) -> TritonKV:
    kv = allocate_kv(layout, "cpu", capability)
    for layer in kv.layers:
        layer.fill_(POISON)
    return kv


def by_slot(kv: TritonKV, layer: int) -> torch.Tensor:
    """[slots, 2, kv_heads, head_dim], as the reference keeps it."""
    values = kv.layers[layer]
    if kv.float8:
        values = values.view(torch.float8_e4m3fn)
    layout = kv.layout
    flat = values.float().permute(0, 3, 1, 2, 4)
    return flat.reshape(layout.num_pages * layout.page_size, 2, layout.num_kv_heads, layout.head_dim)


def untouched(kv: TritonKV, layer: int, step: Step) -> torch.Tensor:
    """What lies in slots that belong to no row."""
    mask = torch.ones(kv.layout.num_pages * kv.layout.page_size, dtype=torch.bool)
    mask[step.reference.slots] = False
    return by_slot(kv, layer)[mask]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "page_size", "norms"),
    [
        (4, 2, 64, 64, 16, "none"),
        (9, 3, 80, 32, 32, "both"),
        (2, 2, 96, 96, 64, "keys"),
        (10, 10, 128, 64, 16, "both"),
        (3, 1, 256, 256, 16, "queries"),
    ],
)
def test_rotation_and_writing_are_those_of_the_reference(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, rotary_dim: int, page_size: int, norms: str
) -> None:
    step = step_of(CHUNKS, page_size=page_size, num_pages=NUM_PAGES, bucket=32)
    layout = layout_of(page_size, kv_heads, head_dim, name_of(dtype))
    kv = poisoned(layout)
    qkv = random(32, (heads + 2 * kv_heads) * head_dim, seed=1).to(dtype)
    angles = random(40, rotary_dim // 2, seed=2)
    cos, sin = angles.cos(), angles.sin()
    q_norm = (1 + random(head_dim, seed=4) / 8).to(dtype) if norms in ("both", "queries") else None
    k_norm = 1 + random(head_dim, seed=5) / 8 if norms in ("both", "keys") else None
    before = qkv.clone()
    queries = rotate_and_write(kv, 1, qkv, Rotation(cos, sin, step.rows), step.rows, q_norm, k_norm, 1e-5)
    assert torch.equal(qkv, before)

    kernels = ReferenceKernels("cpu")
    exact = kernels.allocate_kv(layout)
    exact.layers[1].fill_(POISON)
    expected = kernels.rotate_and_write(
        exact,
        1,
        qkv[: step.num_rows].clone(),
        kernels.rotation(cos, sin, step.reference),
        kernels.plan(step.reference, exact),
        q_norm,
        k_norm,
        1e-5,
    )
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(queries[: step.num_rows], expected, rtol=tolerance, atol=tolerance)
    assert queries.isfinite().all()
    torch.testing.assert_close(by_slot(kv, 1), exact.layers[1].float(), rtol=tolerance, atol=tolerance)
    assert (untouched(kv, 1, step) == POISON).all()
    assert (kv.layers[0] == POISON).all()


@pytest.mark.parametrize("page_size", [16, 64])
def test_keys_and_values_are_written_as_they_are(page_size: int) -> None:
    step = step_of(CHUNKS, page_size=page_size, num_pages=NUM_PAGES, bucket=40)
    kv = poisoned(layout_of(page_size, 3, 80, "bfloat16"))
    keys, values = random(40, 3, 80, seed=1).bfloat16(), random(40, 3, 80, seed=2).bfloat16()
    write(kv, 0, keys, values, step.rows)
    rows = by_slot(kv, 0)[step.reference.slots]
    assert torch.equal(rows, torch.stack((keys, values), 1)[: step.num_rows].float())
    assert (untouched(kv, 0, step) == POISON).all()
    assert (kv.layers[1] == POISON).all()


@pytest.mark.parametrize("capability", [80, 90])
def test_eight_bits_hold_the_nearest_numbers(capability: int) -> None:
    """Large, tiny and undefined ones included; twice as large as stored where the scale says so."""
    step = step_of([(16, 16)], page_size=16, num_pages=NUM_PAGES)
    kv = poisoned(layout_of(16, 2, 64, "float8_e4m3fn"), capability)
    kv.scales[0] = torch.tensor([1.0, 2.0])
    keys = random(16, 2, 64, seed=1) * torch.logspace(-4, 3, 64)
    keys[0, 0, :6] = torch.tensor([0.0, 448.0, 465.0, -1e6, 2.0**-9, 2.0**-11])
    keys[0, 1, 0] = torch.nan
    keys = keys.half()
    write(kv, 0, keys, keys, step.rows)
    rows = by_slot(kv, 0)[step.reference.slots]
    for part, scale in ((0, 1.0), (1, 2.0)):
        nearest = (keys.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        torch.testing.assert_close(rows[:, part], nearest, rtol=0, atol=0, equal_nan=True)
