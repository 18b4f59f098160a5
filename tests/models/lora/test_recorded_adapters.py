"""Adapters in a pass that is recorded once and run with other adapters each time."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.recorder import RowCount, bound
from limelight.kernels.cpu.step_buffers import StepLimits
from limelight.kernels.interface import LowRank, LowRankPart
from limelight.models.layers import ProjectionShape
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.lora.recorded_adapters import RecordedAdapters
from limelight.step import Chunk
from tests.kernels.batches import random
from tests.kernels.cpu import libraries

MAX_RANK = 6
QKV = ProjectionShape(("q", "k", "v"), (16, 8, 8), 24)
HEAD = ProjectionShape(("head",), (40,), 24)
LIMITS = StepLimits(num_tokens=32, num_seats=6, num_sampled=8, max_pages=1, page_size=8)


def adapter(rank: int, seed: int, *, head: bool) -> AdapterWeights:
    qkv = LowRank(
        down=random(2 * rank, 24, seed=seed),
        parts=(
            LowRankPart(first_output=0, up=random(16, rank, seed=seed + 1)),
            LowRankPart(first_output=24, up=random(8, rank, seed=seed + 2)),
        ),
    )
    products = {"q": qkv}
    if head:
        up = LowRankPart(first_output=0, up=random(40, rank, seed=seed + 4))
        products["head"] = LowRank(down=random(rank, 24, seed=seed + 3), parts=(up,))
    return AdapterWeights(products=products, rank=rank, num_bytes=0)


def added(weights: AdapterWeights | None, name: str, row: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """What the adapter adds for one row."""
    outputs = torch.zeros(num_outputs, dtype=torch.float64)
    if weights is None or name not in weights.products:
        return outputs
    product = weights.products[name]
    first_rank = 0
    for part in product.parts:
        num, rank = part.up.shape
        inner = product.down[first_rank : first_rank + rank].double() @ row.double()
        outputs[part.first_output : part.first_output + num] += part.up.double() @ inner
        first_rank += rank
    return outputs


class Pass:
    """Two projections: one of all rows, and one of the rows that draw."""

    def __init__(self) -> None:
        kernels = CpuKernels(libraries.load(libraries.VARIANTS[0]))
        self.adapters = RecordedAdapters([QKV, HEAD], kernels, LIMITS, 2, MAX_RANK)
        self.counts = np.zeros(2, np.int32)
        tokens, sampled = RowCount(self.counts[:1], LIMITS.num_tokens), RowCount(self.counts[1:], LIMITS.num_sampled)
        self.inputs = random(LIMITS.num_tokens, 24).numpy()
        self.outputs = np.zeros((LIMITS.num_tokens, 32), np.float32)
        self.logits = np.zeros((LIMITS.num_sampled, 40), np.float32)
        with kernels.recording() as recorder:
            self.adapters.all_rows.add_to("q", bound(tokens, self.outputs), bound(tokens, self.inputs))
            self.adapters.sampled_rows.add_to("head", bound(sampled, self.logits), bound(sampled, self.inputs[:8]))
            self.program = recorder.finish()[0]

    def run(
        self, chunks: list[Chunk], of_seat: list[int | None], weights: dict[int, AdapterWeights]
    ) -> tuple[Any, Any]:
        """What was added to the rows of both projections."""
        owners = [of_seat[chunk.seat] for chunk in chunks for _ in range(chunk.num_tokens)]
        sampled = [of_seat[chunk.seat] for chunk in chunks if chunk.sample for _ in range(chunk.num_drafts + 1)]
        self.counts[:] = len(owners), len(sampled)
        self.outputs.fill(0)
        self.logits.fill(0)
        self.adapters.fill(chunks, of_seat, weights)
        self.program.run()
        for name, ours, rows in (("q", self.outputs, owners), ("head", self.logits, sampled)):
            for row, owner in enumerate(rows):
                own = None if owner is None else weights[owner]
                expected = added(own, name, torch.from_numpy(self.inputs[row]), ours.shape[1])
                np.testing.assert_allclose(ours[row], expected.numpy(), rtol=1e-5, atol=1e-4)
            assert not ours[len(rows) :].any()
        return self.outputs, self.logits


def chunk(seat: int, num_tokens: int, *, sample: bool = False, num_drafts: int = 0) -> Chunk:
    return Chunk(
        seat=seat, start=0, num_tokens=num_tokens, token_ids=(0,) * num_tokens, sample=sample, num_drafts=num_drafts
    )


def test_each_row_gets_the_adapter_of_its_seat_at_each_step() -> None:
    recorded = Pass()
    weights = {3: adapter(2, 10, head=True), 9: adapter(6, 20, head=False)}
    seats = [None, 3, 9, 3, None, 9]
    mixed = [
        chunk(2, 3, sample=True, num_drafts=2),
        chunk(0, 7),
        chunk(1, 1, sample=True),
        chunk(4, 1, sample=True),
        chunk(3, 9),
        chunk(5, 2, sample=True),
    ]
    outputs, _ = recorded.run(mixed, seats, weights)
    assert outputs.any()
    outputs, logits = recorded.run([chunk(0, 4, sample=True), chunk(4, 1, sample=True)], seats, weights)
    assert not outputs.any()
    assert not logits.any()
    del weights[3]
    weights[4] = adapter(5, 30, head=True)
    seats[1] = seats[3] = 4
    recorded.run(mixed[::-1], seats, weights)
    recorded.run([chunk(3, 32, sample=True)], seats, weights)


def test_an_adapter_that_is_dropped_is_not_held() -> None:
    recorded = Pass()
    weights = {3: adapter(2, 10, head=True)}
    recorded.run([chunk(0, 2, sample=True)], [3], weights)
    matrix = weakref.ref(weights[3].products["q"].down)
    del weights[3]
    gc.collect()
    assert matrix() is None
    weights[3] = adapter(4, 20, head=True)  # another under the same number
    recorded.run([chunk(0, 2, sample=True)], [3], weights)


def test_a_seat_whose_adapter_is_not_loaded_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"adapter 5; the loaded ones are \[3\]"):
        Pass().adapters.fill([chunk(0, 1)], [5], {3: adapter(2, 10, head=True)})
