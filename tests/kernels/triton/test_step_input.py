import random

import pytest
import torch

from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.triton.step_input import patch_seats, prepare
from limelight.kernels.triton.step_memory import NOBODY, StepLimits
from limelight.models.forward_tensors import build_forward_batch
from limelight.models.seats import Seats
from tests.kernels.triton.step_buffers import (
    empty_step,
    fill_chunks,
    fill_patches,
    random_chunks,
    row_batch,
    seat_words,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LIMITS = StepLimits(rows=300, chunks=9, sampled=40, patches=600)
NUM_SEATS, MAX_MODEL_LEN = 9, 200


@pytest.mark.parametrize("case", range(12))
def test_rows_are_those_of_the_reference(case: int) -> None:
    rng = random.Random(case)
    page_size = rng.choice([16, 32, 64])
    reference = Seats(NUM_SEATS, -(-MAX_MODEL_LEN // page_size), page_size, "cpu")
    chunks = random_chunks(rng, NUM_SEATS, MAX_MODEL_LEN, page_size, LIMITS.rows)
    reference.append_pages(chunks)
    reference.last_tokens[:] = torch.tensor([rng.randrange(1000) for _ in range(NUM_SEATS)])
    expected = build_forward_batch(chunks, reference, page_size, ReferenceKernels("cpu"), {})

    seats = seat_words(NUM_SEATS, reference.page_table.shape[1], 8)
    seats.page_table[:] = reference.page_table
    seats.last_tokens[:] = reference.last_tokens.to(torch.int32)
    step = empty_step(LIMITS)
    fill_chunks(step, chunks)
    num_rows = len(expected.token_ids)
    batch = row_batch(step, seats, min(num_rows + rng.randint(0, 9), LIMITS.rows), LIMITS.chunks)
    prepare(batch, page_size)

    assert batch.token_ids[:num_rows].tolist() == expected.token_ids.tolist()
    assert batch.positions[:num_rows].tolist() == expected.attention.positions.tolist()
    assert batch.slots[:num_rows].tolist() == expected.attention.slots.tolist()
    assert batch.context_lens[: len(chunks)].tolist() == expected.attention.context_lens.tolist()
    assert not batch.token_ids[num_rows:].any()
    assert not batch.positions[num_rows:].any()
    assert (batch.slots[num_rows:] == NOBODY).all()
    assert not batch.context_lens[len(chunks) :].any()


def test_a_step_without_chunks_leaves_nothing_but_padding() -> None:
    batch = row_batch(empty_step(LIMITS), seat_words(NUM_SEATS, 4, 8), 3, 2)
    batch.step.query_starts[:] = 0
    prepare(batch, 16)
    assert batch.slots.tolist() == [NOBODY] * 3
    assert batch.context_lens.tolist() == [0, 0]


@pytest.mark.parametrize("num_patches", [0, 1, 255, 256, 257, 600])
def test_patches_change_the_words_they_name_and_no_others(num_patches: int) -> None:
    rng = random.Random(num_patches)
    seats = seat_words(3, 4, 50)
    expected = torch.randint(-(2**31), 2**31, (seats.words.numel(),), dtype=torch.int32)
    seats.words.view(-1)[:] = expected
    edges = [0, len(expected) - 1]
    others = range(1, len(expected) - 1)
    addresses = (edges + rng.sample(others, LIMITS.patches))[:num_patches]
    patches = {address: rng.randrange(-(2**31), 2**31) for address in addresses}
    step = empty_step(LIMITS)
    fill_patches(step, patches)
    patch_seats(step, seats)
    for address, value in patches.items():
        expected[address] = value
    assert torch.equal(seats.words.view(-1), expected)
