"""Attention over pages in Triton's interpreter against the reference."""

import msgspec
import pytest
import torch

from limelight.kernels.interface import AttentionSettings, KVLayout
from limelight.kernels.reference import ReferenceKernels, ReferenceKV
from limelight.kernels.torch_dtypes import name_of
from limelight.kernels.triton import attention
from limelight.kernels.triton.attention import AttentionPlan, Processor
from limelight.kernels.triton.kv import TritonKV, allocate_kv
from tests.kernels.batches import random
from tests.kernels.triton.row_batches import Step, step_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_PAGES = 64
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def written(
    step: Step, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[TritonKV, ReferenceKV]:
    """The same pool for both: whole contexts are written, every other slot is NaN."""
    layout = KVLayout(
        num_layers=2,
        num_pages=NUM_PAGES,
        page_size=page_size,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=name_of(dtype),
    )
    kv, reference = allocate_kv(layout, "cpu", 90), ReferenceKernels("cpu").allocate_kv(layout)
    for number, layer in enumerate(reference.layers):
        layer.fill_(torch.nan)
        batch = step.reference
        for chunk, context in enumerate(batch.context_lens.tolist()):
            positions = torch.arange(context)
            slots = batch.page_table[chunk, positions // page_size].long() * page_size + positions % page_size
            layer[slots] = random(context, 2, kv_heads, head_dim, seed=10 * chunk + number).to(dtype)
        kv.layers[number].copy_(layer.view(NUM_PAGES, page_size, 2, kv_heads, head_dim).permute(0, 2, 3, 1, 4))
    return kv, reference


def check(
    step: Step,
    settings: AttentionSettings,
    *,
    page_size: int = 16,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float16,
    processors: int = 2,
) -> None:
    kv, reference = written(step, page_size, kv_heads, head_dim, dtype)
    plan = AttentionPlan(step.rows, kv, Processor(capability=90, num_processors=processors))
    queries = torch.full((len(step.rows.slots), heads, head_dim), torch.nan, dtype=dtype)
    queries[: step.num_rows] = random(step.num_rows, heads, head_dim, seed=3).to(dtype)
    ours = attention.attend(1, queries, plan, settings)
    assert ours.shape == (len(queries), heads * head_dim)
    assert ours.dtype == dtype
    assert not ours[step.num_rows :].any()
    if step.num_rows:
        kernels = ReferenceKernels("cpu")
        layout = msgspec.structs.replace(reference.layout, dtype="float32")
        exact = ReferenceKV(layout, tuple(layer.float() for layer in reference.layers))
        theirs = kernels.attend(
            exact, 1, queries[: step.num_rows].float(), kernels.plan(step.reference, exact), settings
        )
        torch.testing.assert_close(
            ours[: step.num_rows].float(), theirs, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
        )


BATCHES = {
    "one decode": [(1, 21)],
    "first token": [(1, 1)],
    "decodes": [(1, 1), (1, 100), (1, 16), (1, 17), (1, 64), (1, 65)],
    "one prefill": [(90, 90)],
    "a later chunk": [(7, 130)],
    "prefills": [(5, 5), (70, 135), (2, 2)],
    "mixed": [(1, 13), (6, 6), (1, 130), (80, 97), (1, 2)],
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("window", [None, 1, 40])
def test_attention_is_that_of_the_reference(name: str, window: int | None) -> None:
    step = step_of(BATCHES[name], page_size=16, num_pages=NUM_PAGES, seed=len(name))
    check(step, AttentionSettings(scale=0.2, sliding_window=window))
