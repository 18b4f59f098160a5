"""Attention over pages in Triton's interpreter against the reference."""

import msgspec
import numpy as np
import pytest
import torch

from limelight.kernels.interface import AttentionSettings, KVLayout
from limelight.kernels.reference import ReferenceKernels, ReferenceKV
from limelight.kernels.torch_dtypes import name_of
from limelight.kernels.triton import attention
from limelight.kernels.triton.attention import AttentionPlan, Processor
from limelight.kernels.triton.kv import TritonKV, allocate_kv
from tests.kernels.batches import random
from tests.kernels.triton.row_batches import MAX_SEATS, Step, step_of

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


def in_eight_bits(kv: TritonKV, reference: ReferenceKV, capability: int) -> tuple[TritonKV, ReferenceKV]:
    """The same with keys and values rounded, which stand for 0.5 and 3 times as much."""
    small = allocate_kv(msgspec.structs.replace(kv.layout, dtype="float8_e4m3fn"), "cpu", capability)
    small.scales[:] = torch.tensor([0.5, 3.0])
    exact = []
    for ours, full, theirs in zip(small.layers, kv.layers, reference.layers, strict=True):
        ours.copy_(full.to(torch.float8_e4m3fn).view(torch.uint8))
        exact.append(theirs.to(torch.float8_e4m3fn).float() * torch.tensor([0.5, 3.0]).view(2, 1, 1))
    return small, ReferenceKV(reference.layout, tuple(exact))


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
    capability: int = 90,
    float8: bool = False,
) -> None:
    kv, reference = written(step, page_size, kv_heads, head_dim, dtype)
    if float8:
        kv, reference = in_eight_bits(kv, reference, capability)
    plan = AttentionPlan(step.rows, kv, Processor(capability=capability, num_processors=processors))
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
    "nothing": [],
    "one decode": [(1, 21)],
    "first token": [(1, 1)],
    "decodes": [(1, 1), (1, 300), (1, 16), (1, 17), (1, 129)],
    "one prefill": [(90, 90)],
    "a later chunk": [(7, 130)],
    "guesses": [(1, 40), (4, 70), (8, 129), (9, 64)],
    "prefills": [(5, 5), (70, 135), (2, 2)],
    "mixed": [(1, 13), (6, 6), (1, 130), (70, 90), (1, 2)],
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("window", [None, 1, 40])
def test_attention_is_that_of_the_reference(name: str, window: int | None) -> None:
    step = step_of(BATCHES[name], page_size=16, num_pages=NUM_PAGES, seed=len(name))
    check(step, AttentionSettings(scale=0.2, sliding_window=window))


@pytest.mark.parametrize("name", ["decodes", "mixed"])
@pytest.mark.parametrize(
    ("soft_cap", "sinks", "window"), [(0.8, None, None), (None, (-30.0, 0.0, 3.0, 60.0), 40), (2.0, (1.0,) * 4, 100)]
)
def test_caps_and_sinks(name: str, soft_cap: float | None, sinks: tuple[float, ...] | None, window: int | None) -> None:
    step = step_of(BATCHES[name], page_size=16, num_pages=NUM_PAGES)
    settings = AttentionSettings(
        scale=0.4, soft_cap=soft_cap, sinks=None if sinks is None else torch.tensor(sinks), sliding_window=window
    )
    check(step, settings)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size", "dtype", "capability"),
    [
        (9, 3, 64, 32, torch.bfloat16, 90),
        (2, 2, 80, 64, torch.float16, 90),
        (10, 2, 96, 16, torch.bfloat16, 89),
        (20, 2, 128, 32, torch.float16, 80),
        (4, 1, 256, 16, torch.bfloat16, 90),
        (17, 1, 64, 16, torch.float16, 80),
    ],
)
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_shapes_of_models(
    name: str, heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype, capability: int
) -> None:
    step = step_of(BATCHES[name], page_size=page_size, num_pages=NUM_PAGES)
    check(
        step,
        AttentionSettings(scale=head_dim**-0.5),
        page_size=page_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        capability=capability,
    )


@pytest.mark.parametrize("processors", [1, 3, 12])
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_any_number_of_programs_gives_the_same(name: str, processors: int) -> None:
    """Fewer than there are tiles, so that shares hold many, and more than there are units of work."""
    step = step_of(BATCHES[name], page_size=16, num_pages=NUM_PAGES)
    check(step, AttentionSettings(scale=0.2), processors=processors)


def test_sequences_may_share_pages() -> None:
    chunks = [(1, 50), (1, 49), (3, 70), (20, 68)]
    check(step_of(chunks, page_size=16, num_pages=NUM_PAGES, shared_pages=3), AttentionSettings(scale=0.2))


@pytest.mark.parametrize(("name", "bucket"), [("nothing", 4), ("decodes", 8), ("mixed", 128)])
def test_rows_that_fill_a_bucket_up_are_zero(name: str, bucket: int) -> None:
    check(step_of(BATCHES[name], page_size=16, num_pages=NUM_PAGES, bucket=bucket), AttentionSettings(scale=0.2))


@pytest.mark.parametrize("seed", range(4))
def test_random_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    page_size = int(rng.choice([16, 32]))
    chunks = []
    for _ in range(rng.integers(1, MAX_SEATS + 1)):
        rows = int(rng.choice([1, 1, 1, 2, 5, 33]))
        border = page_size * int(rng.integers(0, 4)) + int(rng.integers(-1, 2))
        chunks.append((rows, max(border, 0) + rows))
    step = step_of(chunks, page_size=page_size, num_pages=NUM_PAGES, bucket=9 * 33, seed=seed)
    window = None if seed % 2 else int(rng.integers(1, 70))
    check(step, AttentionSettings(scale=0.3, sliding_window=window), page_size=page_size, dtype=torch.bfloat16)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_keys_and_values_in_eight_bits(name: str, capability: int) -> None:
    """As exact as attention over what the eight bits hold."""
    step = step_of(BATCHES[name], page_size=16, num_pages=NUM_PAGES)
    check(step, AttentionSettings(scale=0.2), dtype=torch.bfloat16, float8=True, capability=capability)
