"""Step -> tensors. Reads the seats, changes nothing, and knows no model; warm-up goes the same way."""

from collections.abc import Mapping

import torch
from torch import Tensor

from limelight.kernels.interface import AttentionBatch, Kernels
from limelight.models.forward_batch import ForwardBatch
from limelight.models.lora.active_adapters import active_adapters
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.seats import Seats
from limelight.step import Chunk


def build_forward_batch(
    chunks: tuple[Chunk, ...], seats: Seats, page_size: int, kernels: Kernels, adapters: Mapping[int, AdapterWeights]
) -> ForwardBatch:
    """Tensors for `chunks` (at least one), whose pages are in the seats already.

    Args:
        adapters: the loaded ones by id; those of the chunks' seats are used.

    Raises:
        ValueError: a chunk's `token_ids` and `num_tokens` disagree, or its seat's adapter is not loaded.
    """
    device = seats.page_table.device
    lengths = [chunk.num_tokens for chunk in chunks]
    num_tokens = sum(lengths)
    # One transfer: seat, start, length and end row of each chunk.
    rows_before = 0
    numbers: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        numbers.append((chunk.seat, chunk.start, chunk.num_tokens, rows_before))
        rows_before += chunk.num_tokens
    seat_index, starts, counts, first_rows = torch.tensor(numbers, device=device).unbind(1)
    most_pages = max(-(-(chunk.start + chunk.num_tokens) // page_size) for chunk in chunks)
    page_table = seats.page_table[:, :most_pages].index_select(0, seat_index)
    context_lens = starts + counts

    if num_tokens == len(chunks):
        positions = starts
        pages = page_table.gather(1, (positions // page_size).unsqueeze(1)).squeeze(1)
    else:
        chunk_of_row = torch.repeat_interleave(counts, output_size=num_tokens)
        positions = torch.arange(num_tokens, device=device) + (starts - first_rows).index_select(0, chunk_of_row)
        pages = page_table[chunk_of_row, positions // page_size]

    sample_rows = _sample_rows(chunks)
    active, sampled = active_adapters(chunks, seats.adapters, sample_rows, kernels, adapters)
    return ForwardBatch(
        token_ids=_token_ids(chunks, seats, seat_index, first_rows, num_tokens),
        attention=AttentionBatch(
            page_table=page_table,
            query_starts=torch.cat((first_rows, first_rows.new_tensor([num_tokens]))).to(torch.int32),
            context_lens=context_lens.to(torch.int32),
            positions=positions,
            slots=pages.long() * page_size + positions % page_size,
        ),
        sample_rows=None
        if len(sample_rows) == num_tokens
        else torch.tensor(sample_rows, dtype=torch.int64, device=device),
        adapters=active,
        sampled_adapters=sampled,
    )


def _token_ids(
    chunks: tuple[Chunk, ...], seats: Seats, seat_index: Tensor, first_rows: Tensor, num_tokens: int
) -> Tensor:
    """Tokens that the step brings, and the last drawn ones of the seats for chunks that bring none."""
    if all(chunk.token_ids is None for chunk in chunks) and num_tokens == len(chunks):
        return seats.last_tokens.index_select(0, seat_index)
    known: list[int] = []
    decodes: list[int] = []
    for index, chunk in enumerate(chunks):
        given = (0,) if chunk.token_ids is None else chunk.token_ids
        if len(given) != chunk.num_tokens:
            raise ValueError(f"the chunk at seat {chunk.seat} has {len(given)} token ids for {chunk.num_tokens} rows")
        if chunk.token_ids is None:
            decodes.append(index)
        known += given
    token_ids = torch.tensor(known, device=seats.last_tokens.device)
    if decodes:
        index_tensor = torch.tensor(decodes, device=token_ids.device)
        last = seats.last_tokens.index_select(0, seat_index.index_select(0, index_tensor))
        token_ids.index_copy_(0, first_rows.index_select(0, index_tensor), last)
    return token_ids


def _sample_rows(chunks: tuple[Chunk, ...]) -> list[int]:
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += chunk.num_tokens
        if chunk.sample:
            rows += range(end - 1 - chunk.num_drafts, end)
    return rows
