"""Tests of low-rank additions in C, against `ReferenceKernels` in float64."""

import gc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.low_rank import NO_ADAPTER, AdapterBuffers, PackedAdapter, add_low_rank
from limelight.kernels.cpu.recorder import Program, Recorder, RowCount, Value, bound
from limelight.kernels.interface import LowRank, LowRankPart, LowRankRows
from limelight.kernels.reference import ReferenceKernels
from tests.kernels.batches import random
from tests.kernels.cpu.recorded import row_count, run_recorded

NAME = "projection"


def product_of(
    num_inputs: int, parts: Sequence[tuple[int, int, int]], dtype: torch.dtype = torch.float32, seed: int = 0
) -> LowRank:
    """Random matrices; `parts` are (first output, outputs, rank)."""
    return LowRank(
        down=random(sum(rank for _, _, rank in parts), num_inputs, seed=seed).to(dtype),
        parts=tuple(
            LowRankPart(first_output=first, up=random(outputs, rank, seed=seed + 1 + index).to(dtype))
            for index, (first, outputs, rank) in enumerate(parts)
        ),
    )


def expected(
    outputs: NDArray[np.float32], inputs: NDArray[np.float32], additions: Sequence[LowRankRows]
) -> NDArray[np.float64]:
    exact = torch.from_numpy(outputs).double()
    doubled = [
        LowRankRows(
            rows=addition.rows,
            product=LowRank(
                down=addition.product.down.double(),
                parts=tuple(
                    LowRankPart(first_output=part.first_output, up=part.up.double()) for part in addition.product.parts
                ),
            ),
        )
        for addition in additions
    ]
    ReferenceKernels("cpu").add_low_rank(exact, torch.from_numpy(inputs).double(), doubled)
    return exact.numpy()


def close(
    ours: NDArray[np.float32],
    outputs: NDArray[np.float32],
    inputs: NDArray[np.float32],
    additions: Sequence[LowRankRows],
) -> None:
    """Within what float32 may round off: 1e-6 of the sum of magnitudes, which is largest for the inner products."""
    size = float(np.abs(inputs).sum(1).max()) + 1
    ranks = max((len(addition.product.down) for addition in additions), default=1)
    np.testing.assert_allclose(ours, expected(outputs, inputs, additions), rtol=1e-5, atol=3e-7 * size * ranks)


def added(
    library: Library,
    outputs: NDArray[np.float32],
    inputs: NDArray[np.float32],
    additions: Sequence[LowRankRows],
) -> NDArray[np.float32]:
    def record(recorder: Recorder) -> list[Value]:
        rows = row_count(len(inputs), largest=len(inputs))
        value = bound(rows, outputs.copy())
        add_low_rank(recorder, value, bound(rows, inputs), additions)
        return [value]

    return run_recorded(library, record)[0]


@settings(max_examples=60)
@given(
    num_rows=st.integers(1, 70),
    num_inputs=st.integers(1, 100),
    widths=st.lists(st.integers(1, 600), min_size=1, max_size=3),
    ranks=st.lists(st.integers(0, 21), min_size=3, max_size=3),
    num_adapters=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_any_sizes_ranks_and_rows_will_do(
    library: Library,
    num_rows: int,
    num_inputs: int,
    widths: list[int],
    ranks: list[int],
    num_adapters: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """A rank of 0 stands for a matrix that is not adapted."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((num_rows, num_inputs), np.float32)
    outputs = generator.standard_normal((num_rows, sum(widths)), np.float32)
    owners = generator.integers(0, num_adapters + 1, num_rows)
    additions = []
    for adapter in range(num_adapters):
        own = np.roll(ranks, adapter).tolist()
        firsts = np.cumsum([0, *widths]).tolist()
        parts = [(first, width, rank) for first, width, rank in zip(firsts, widths, own, strict=False) if rank]
        if parts:
            rows = torch.from_numpy(np.flatnonzero(owners == adapter))
            additions.append(LowRankRows(rows=rows, product=product_of(num_inputs, parts, dtype, adapter)))
    close(added(library, outputs, inputs, additions), outputs, inputs, additions)


def test_all_rows(library: Library) -> None:
    inputs, outputs = random(9, 40).numpy(), random(9, 30, seed=1).numpy()
    additions = [LowRankRows(rows=None, product=product_of(40, [(0, 10, 3), (20, 10, 2)]))]
    close(added(library, outputs, inputs, additions), outputs, inputs, additions)


class Pass:
    """A recorded pass of one projection that adapters can change."""

    def __init__(self, library: Library, num_rows: int, num_inputs: int, num_outputs: int) -> None:
        self.counter = np.zeros(1, np.int32)
        rows = RowCount(self.counter, num_rows)
        self.inputs = np.zeros((num_rows, num_inputs), np.float32)
        self.outputs = np.zeros((num_rows, num_outputs), np.float32)
        self.buffers = AdapterBuffers({"other": 4, NAME: 60}, 4, num_rows, num_rows)
        recorder = Recorder(library)
        self.buffers.record(
            recorder, NAME, self.buffers.row_adapters, bound(rows, self.outputs), bound(rows, self.inputs)
        )
        self.program: Program = recorder.finish()[0]

    def run(
        self,
        outputs: NDArray[np.float32],
        inputs: NDArray[np.float32],
        adapters: Sequence[PackedAdapter],
        row_adapters: Sequence[int],
    ) -> NDArray[np.float32]:
        num_rows = len(inputs)
        self.counter[0] = num_rows
        self.inputs[:num_rows] = inputs
        self.outputs[:num_rows] = outputs
        self.buffers.activate(adapters)
        self.buffers.row_adapters[:num_rows] = row_adapters
        self.program.run()
        return self.outputs[:num_rows].copy()


def test_adapters_change_between_the_runs_of_one_pass(library: Library) -> None:
    recorded = Pass(library, 20, 64, 48)
    outputs, inputs = random(20, 48, seed=7).numpy(), random(20, 64, seed=8).numpy()
    first, second = product_of(64, [(0, 48, 8)], seed=1), product_of(64, [(8, 16, 5), (24, 20, 30)], seed=2)
    for product, rows in [(first, range(20)), (second, range(3, 17)), (first, [4])]:
        packed = recorded.buffers.pack({NAME: product})
        owners = [0 if row in rows else NO_ADAPTER for row in range(20)]
        ours = recorded.run(outputs, inputs, [packed], owners)
        close(ours, outputs, inputs, [LowRankRows(rows=torch.tensor(list(rows)), product=product)])
        del packed, product
        gc.collect()
    np.testing.assert_array_equal(recorded.run(outputs, inputs, [], [NO_ADAPTER] * 20), outputs)


def test_adapters_that_leave_the_projection_alone(library: Library) -> None:
    recorded = Pass(library, 8, 16, 24)
    outputs, inputs = random(8, 24, seed=7).numpy(), random(8, 16, seed=8).numpy()
    other = recorded.buffers.pack({"other": product_of(16, [(0, 24, 4)])})
    product = product_of(16, [(0, 24, 4)], seed=3)
    one = recorded.buffers.pack({NAME: product})
    np.testing.assert_array_equal(recorded.run(outputs, inputs, [other], [0] * 8), outputs)
    owners = [0, 1, 1, NO_ADAPTER, 0, 0, 1, 0]
    ours = recorded.run(outputs, inputs, [other, one], owners)
    close(ours, outputs, inputs, [LowRankRows(rows=torch.tensor([1, 2, 6]), product=product)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_gets_the_same_bits_alone_and_in_a_batch(library: Library, dtype: torch.dtype) -> None:
    """Whichever rows and adapters are beside it."""
    recorded = Pass(library, 70, 101, 1037)
    outputs, inputs = random(70, 1037, seed=7).numpy(), random(70, 101, seed=8).numpy()
    products = [
        product_of(101, [(0, 1037, 9)], dtype, 1),
        product_of(101, [(3, 600, 5), (610, 427, 16)], dtype, 2),
        product_of(101, [(1000, 37, 23)], dtype, 3),
    ]
    packed = [recorded.buffers.pack({NAME: product}) for product in products]
    owners = np.random.default_rng(0).integers(-1, 3, 70)
    owners[20:50] = 1  # a chunk of a prompt
    together = recorded.run(outputs, inputs, packed, owners.tolist())
    for row in range(70):
        owner = int(owners[row])
        alone = recorded.run(
            outputs[row : row + 1],
            inputs[row : row + 1],
            [] if owner < 0 else [packed[owner]],
            [min(owner, 0)],
        )
        np.testing.assert_array_equal(alone[0], together[row])


def test_matrices_are_shared_with_the_adapter(library: Library) -> None:
    """Where `up` lies in memory as the products read it: adapters are in memory once."""
    buffers = AdapterBuffers({NAME: 8}, 1, 4, 4)
    up = random(3, 24).T
    packed = buffers.pack({NAME: LowRank(down=random(3, 16), parts=(LowRankPart(first_output=0, up=up),))})
    assert [tensor.data_ptr() for tensor in packed.products[0].kept][1] == up.data_ptr()
