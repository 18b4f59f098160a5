"""Device code that turns what a step brings into what its rows read."""

import triton
import triton.language as tl

from limelight.kernels.triton import step_memory

NUM_CHUNKS = tl.constexpr(step_memory.NUM_CHUNKS)
NUM_ROWS = tl.constexpr(step_memory.NUM_ROWS)
NUM_PATCHES = tl.constexpr(step_memory.NUM_PATCHES)
LAST_TOKEN_OF_SEAT = tl.constexpr(step_memory.LAST_TOKEN_OF_SEAT)
NOBODY = tl.constexpr(step_memory.NOBODY)


@triton.jit
def patch_seats_kernel(header, addresses, values, table, BLOCK: tl.constexpr):
    """Programs: blocks of patches."""
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    present = entries < tl.load(header + NUM_PATCHES)
    address = tl.load(addresses + entries, mask=present, other=0)
    tl.store(table + address, tl.load(values + entries, mask=present, other=0), mask=present)


@triton.jit(
    do_not_specialize=[
        "seat_words",
        "last_token_word",
        "pages_word",
        "most_rows",
        "most_chunks",
        "page_size",
        "num_halvings",
    ]
)
def prepare_kernel(
    header,
    chunk_seats,
    chunk_starts,
    query_starts,
    step_token_ids,
    seats,
    seat_words,
    last_token_word,
    pages_word,
    context_lens,
    token_ids,
    positions,
    slots,
    most_rows,
    most_chunks,
    page_size,
    num_halvings,
    BLOCK: tl.constexpr,
):
    """Programs: blocks of rows, and of chunks as well. Halvings: enough to find a chunk by its rows."""
    num_rows, num_chunks = tl.load(header + NUM_ROWS), tl.load(header + NUM_CHUNKS)
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)

    chunk_present = entries < num_chunks
    start = tl.load(chunk_starts + entries, mask=chunk_present, other=0)
    first_row = tl.load(query_starts + entries, mask=chunk_present, other=0)
    end_row = tl.load(query_starts + entries + 1, mask=chunk_present, other=0)
    tl.store(context_lens + entries, start + end_row - first_row, mask=entries < most_chunks)

    # The row's chunk is the last one that begins at or before it; `low` always does, `high` never.
    present = entries < num_rows
    low = tl.zeros([BLOCK], tl.int32)
    high = low + num_chunks
    for _ in range(num_halvings):
        middle = (low + high) // 2
        begins_before = tl.load(query_starts + middle, mask=present, other=0) <= entries
        low = tl.where(begins_before, middle, low)
        high = tl.where(begins_before, high, middle)

    position = tl.load(chunk_starts + low, mask=present, other=0)
    position += entries - tl.load(query_starts + low, mask=present, other=0)
    position = tl.where(present, position, 0)
    seat = seats + tl.load(chunk_seats + low, mask=present, other=0).to(tl.int64) * seat_words
    page = tl.load(seat + pages_word + position // page_size, mask=present, other=0)
    token_id = tl.load(step_token_ids + entries, mask=present, other=0)
    drawn = tl.load(seat + last_token_word, mask=present & (token_id == LAST_TOKEN_OF_SEAT), other=0)

    in_batch = entries < most_rows
    tl.store(token_ids + entries, tl.where(token_id == LAST_TOKEN_OF_SEAT, drawn, token_id), mask=in_batch)
    tl.store(positions + entries, position, mask=in_batch)
    tl.store(slots + entries, tl.where(present, page * page_size + position % page_size, NOBODY), mask=in_batch)
