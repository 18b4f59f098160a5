"""Attention over pages against softmax written out in float64, one head of one row at a time."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from limelight.kernels import reference_attention
from limelight.kernels.interface import AttentionBatch, AttentionSettings
from limelight.kernels.reference import ReferenceKernels, ReferenceKV
from tests.kernels.batches import PAGE_SIZE, batch_of, close, pool, random

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def written(kernels: ReferenceKernels, batch: AttentionBatch, kv_heads: int, head_dim: int, seed: int) -> ReferenceKV:
    """A pool with the keys and values of whole contexts, and NaN wherever no sequence of the batch has written."""
    kv = pool(kernels, kv_heads, head_dim)
    for chunk, context in enumerate(batch.context_lens.tolist()):
        positions = torch.arange(context)
        slots = batch.page_table[chunk, positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
        for number, layer in enumerate(kv.layers):
            layer[slots] = random(context, 2, kv_heads, head_dim, seed=seed + 10 * chunk + number)
    return kv


def attention_by_hand(
    queries: torch.Tensor, kv: ReferenceKV, layer: int, batch: AttentionBatch, settings: AttentionSettings
) -> np.ndarray:
    stored = kv.layers[layer].double().numpy()
    starts = batch.query_starts.tolist()
    result = np.zeros(queries.shape)
    group = queries.shape[1] // kv.layout.num_kv_heads
    for chunk, (first, end) in enumerate(itertools.pairwise(starts)):
        for row in range(first, end):
            position = int(batch.positions[row])
            lowest = 0 if settings.sliding_window is None else max(0, position - settings.sliding_window + 1)
            slots = [
                int(batch.page_table[chunk, p // PAGE_SIZE]) * PAGE_SIZE + p % PAGE_SIZE
                for p in range(lowest, position + 1)
            ]
            for head in range(queries.shape[1]):
                keys, values = stored[slots, 0, head // group], stored[slots, 1, head // group]
                scores = keys @ queries[row, head].double().numpy() * settings.scale
                if settings.soft_cap is not None:
                    scores = np.tanh(scores / settings.soft_cap) * settings.soft_cap
                # A sink is a key like any other whose value is zero.
                if settings.sinks is not None:
                    scores = np.append(scores, float(settings.sinks[head]))
                    values = np.append(values, np.zeros((1, values.shape[1])), 0)
                weights = np.exp(scores - scores.max())
                result[row, head] = weights / weights.sum() @ values
    return result.reshape(len(queries), -1)


BATCHES = {
    "one decode": [(1, 21)],
    "first token": [(1, 1)],
    "decodes of one length": [(1, 16), (1, 16)],
    "decodes": [(1, 1), (1, 40), (1, 8), (1, 9)],
    "one prefill": [(19, 19)],
    "a later chunk": [(7, 30)],
    "prefills": [(5, 5), (9, 25), (2, 2)],
    "mixed": [(1, 13), (6, 6), (1, 30), (8, 17), (1, 2)],
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("window", [None, 1, 5, 16, 100])
@pytest.mark.parametrize("soft_cap", [None, 0.8])
@pytest.mark.parametrize("sinks", [None, (-30.0, -1.0, 0.0, 0.5, 3.0, 60.0)])
def test_attention_is_softmax_over_the_tokens_in_reach(
    kernels: ReferenceKernels,
    name: str,
    window: int | None,
    soft_cap: float | None,
    sinks: tuple[float, ...] | None,
) -> None:
    batch = batch_of(BATCHES[name], seed=len(name))
    settings = AttentionSettings(
        scale=0.4, sliding_window=window, soft_cap=soft_cap, sinks=None if sinks is None else torch.tensor(sinks)
    )
    kv = written(kernels, batch, kv_heads=2, head_dim=8, seed=7)
    queries = random(len(batch.positions), 6, 8, seed=3)
    ours = kernels.attend(kv, 1, queries, kernels.plan(batch, kv), settings)
    close(ours, attention_by_hand(queries, kv, 1, batch, settings))


@pytest.mark.parametrize("scores_at_once", [1, 2 * 6 * 30, 10**6])
@pytest.mark.parametrize("window", [None, 5])
def test_long_chunks_are_attended_in_pieces(
    kernels: ReferenceKernels, scores_at_once: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    written_out = reference_attention._written_out

    def watched(queries: torch.Tensor, keys: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append(queries.shape[0] * queries.shape[1] * queries.shape[2] * keys.shape[2])
        return written_out(queries, keys, *rest)

    monkeypatch.setattr(reference_attention, "SCORES_AT_ONCE", scores_at_once)
    monkeypatch.setattr(reference_attention, "_written_out", watched)
    batch = batch_of([(19, 19), (11, 30), (1, 9), (1, 7)])
    settings = AttentionSettings(scale=0.4, sliding_window=window, sinks=torch.linspace(-1, 2, 6))
    kv = written(kernels, batch, kv_heads=2, head_dim=8, seed=7)
    queries = random(len(batch.positions), 6, 8, seed=3)
    ours = kernels.attend(kv, 1, queries, kernels.plan(batch, kv), settings)
    close(ours, attention_by_hand(queries, kv, 1, batch, settings))
    one_row_of_each_sequence = 2 * 6 * 30
    assert max(sizes) <= max(scores_at_once, one_row_of_each_sequence)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 2), (3, 3, 6), (9, 3, 64), (8, 1, 20), (4, 2, 128)])
def test_attention_with_other_head_counts_and_sizes(
    kernels: ReferenceKernels, heads: int, kv_heads: int, head_dim: int
) -> None:
    batch = batch_of(BATCHES["mixed"])
    settings = AttentionSettings(scale=head_dim**-0.5)
    kv = written(kernels, batch, kv_heads, head_dim, seed=1)
    queries = random(len(batch.positions), heads, head_dim)
    ours = kernels.attend(kv, 0, queries, kernels.plan(batch, kv), settings)
    close(ours, attention_by_hand(queries, kv, 0, batch, settings))


def test_decodes_of_very_different_lengths_are_attended_in_groups(kernels: ReferenceKernels) -> None:
    """Padding forty short rows to one long one would cost more than the rows themselves."""
    batch = AttentionBatch(
        page_table=torch.zeros(41, 200, dtype=torch.int32),
        query_starts=torch.arange(42, dtype=torch.int32),
        context_lens=torch.tensor([1600] + [8] * 40, dtype=torch.int32),
        positions=torch.tensor([1599] + [7] * 40),
        slots=torch.zeros(41, dtype=torch.int64),
    )
    kv = pool(kernels, 1, 2)
    pieces = kernels.plan(batch, kv).work(None)
    assert sorted(len(piece.slots) for piece in pieces) == [320, 1600]
    assert sorted(row for piece in pieces for row in piece.rows.tolist()) == list(range(41))
    assert len(kernels.plan(batch, kv).work(8)) == 1  # within a window they are all alike


def test_capped_scores_are_not_rounded_in_bfloat16(kernels: ReferenceKernels) -> None:
    """Near 100 bfloat16 has steps of 0.5, and a difference of 0.5 between scores is one of 65 % between weights."""
    batch = batch_of(BATCHES["mixed"])
    exact = written(kernels, batch, 2, 8, seed=1)
    kv = pool(kernels, 2, 8, torch.bfloat16)
    kv.layers[0].copy_(exact.layers[0] * 10)
    exact.layers[0].copy_(kv.layers[0])
    queries = (random(len(batch.positions), 4, 8) * 10).bfloat16()
    settings = AttentionSettings(scale=0.5, soft_cap=50.0)
    ours = kernels.attend(kv, 0, queries, kernels.plan(batch, kv), settings)
    expected = torch.from_numpy(attention_by_hand(queries, exact, 0, batch, settings))
    torch.testing.assert_close(ours.double(), expected, atol=0.05, rtol=1e-2)


def test_attention_in_bfloat16_keeps_its_dtype(kernels: ReferenceKernels) -> None:
    batch = batch_of(BATCHES["mixed"])
    exact = written(kernels, batch, 2, 8, seed=1)
    kv = pool(kernels, 2, 8, torch.bfloat16)
    kv.layers[0].copy_(exact.layers[0])
    queries = random(len(batch.positions), 4, 8)
    for soft_cap, sinks in ((None, None), (2.0, None), (None, torch.tensor([0.0, 1.0, 2.0, -1.0]))):
        settings = AttentionSettings(scale=math.sqrt(1 / 8), soft_cap=soft_cap, sinks=sinks)
        ours = kernels.attend(kv, 0, queries.bfloat16(), kernels.plan(batch, kv), settings)
        assert ours.dtype == torch.bfloat16
        close(ours.float(), attention_by_hand(queries, exact, 0, batch, settings), 5e-2)
