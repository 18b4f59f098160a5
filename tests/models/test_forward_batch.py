"""Steps as tensors."""

import pytest
import torch

from limelight.kernels.reference import ReferenceKernels
from limelight.models.forward_batch import ForwardBatch
from limelight.models.forward_tensors import build_forward_batch
from limelight.models.seats import Seats
from limelight.step import Chunk

PAGE_SIZE = 4


def built(*chunks: Chunk, last_tokens: tuple[int, ...] = (0, 0, 0, 0)) -> ForwardBatch:
    seats = Seats(4, 8, PAGE_SIZE, "cpu")
    seats.append_pages(chunks)
    seats.last_tokens.copy_(torch.tensor(last_tokens))
    return build_forward_batch(chunks, seats, PAGE_SIZE, ReferenceKernels("cpu"), {})


def test_prefill_and_decode_lie_one_after_the_other() -> None:
    batch = built(
        Chunk(seat=2, start=3, num_tokens=3, token_ids=(10, 11, 12), new_pages=(7, 5)),
        Chunk(seat=0, start=8, num_tokens=1, token_ids=None, new_pages=(1, 2, 3), sample=True),
        Chunk(seat=1, start=0, num_tokens=2, token_ids=(20, 21), new_pages=(6,), sample=True),
        last_tokens=(99, 0, 55, 0),
    )
    attention = batch.attention
    assert batch.token_ids.tolist() == [10, 11, 12, 99, 20, 21]
    assert attention.positions.tolist() == [3, 4, 5, 8, 0, 1]
    assert attention.slots.tolist() == [31, 20, 21, 12, 24, 25]
    assert attention.query_starts.tolist() == [0, 3, 4, 6]
    assert attention.context_lens.tolist() == [6, 9, 2]
    assert attention.page_table.tolist() == [[7, 5, 0], [1, 2, 3], [6, 0, 0]]
    assert batch.sample_rows is not None
    assert batch.sample_rows.tolist() == [3, 5]
    assert attention.positions.dtype == attention.slots.dtype == batch.token_ids.dtype == torch.int64
    assert attention.page_table.dtype == attention.query_starts.dtype == attention.context_lens.dtype == torch.int32


def test_a_pure_decode_reads_every_token_from_the_seats_and_samples_all_rows() -> None:
    batch = built(
        Chunk(seat=3, start=4, num_tokens=1, token_ids=None, new_pages=(9, 8), sample=True),
        Chunk(seat=0, start=0, num_tokens=1, token_ids=None, new_pages=(2,), sample=True),
        last_tokens=(5, 6, 7, 8),
    )
    assert batch.token_ids.tolist() == [8, 5]
    assert batch.attention.slots.tolist() == [32, 8]
    assert batch.sample_rows is None


def test_decode_rows_may_bring_their_tokens() -> None:
    batch = built(
        Chunk(seat=3, start=0, num_tokens=1, token_ids=(17,), new_pages=(9,), sample=True),
        Chunk(seat=0, start=0, num_tokens=1, token_ids=None, new_pages=(2,), sample=False),
        last_tokens=(5, 6, 7, 8),
    )
    assert batch.token_ids.tolist() == [17, 5]
    assert batch.sample_rows is not None
    assert batch.sample_rows.tolist() == [0]


def test_no_row_may_be_sampled() -> None:
    batch = built(Chunk(seat=1, start=0, num_tokens=2, token_ids=(1, 2), new_pages=(3,)))
    assert batch.sample_rows is not None
    assert batch.sample_rows.tolist() == []


@pytest.mark.parametrize("token_ids", [(1, 2), (), None])
def test_a_chunk_whose_tokens_do_not_match_its_rows_is_refused(token_ids: tuple[int, ...] | None) -> None:
    with pytest.raises(ValueError, match=r"seat 1 has \d token ids for 3 rows"):
        built(Chunk(seat=1, start=0, num_tokens=3, token_ids=token_ids, new_pages=(3,)))
