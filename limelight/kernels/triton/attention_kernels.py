"""Device code of attention over pages: one launch for whatever a step consists of, and one that joins partial results.

Flash attention (Dao 2023, arXiv 2307.08691) over the shares of `attention_plan_kernels.py`. Row `i` of a tile is query
head `i % GROUP` of the kv head, of row `i // GROUP` of the tile's part of the chunk: heads that share keys and values
share their loads, too. Softmax is in base 2 and float32; weights are rounded to the dtype of the queries for the second
product.
"""

import triton
import triton.language as tl

from limelight.kernels.triton.attention_plan_kernels import find_tile, first_block, owner, share
from limelight.kernels.triton.float8_kernels import from_stored

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""Where the running maximum begins: finite, because a row may see none of the keys of a block, and far below all scores
that are not minus infinity.
"""
BLOCK_ENDS = tl.constexpr(256)


@triton.jit
def capped(scores, scale, soft_cap):
    """Products of queries and keys as exponents of two."""
    if soft_cap is None:
        exponents = scores * (scale * LOG2_E)
    else:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), exact to float32's rounding of 1 and without overflow into NaN.
        tanh = 1.0 - 2.0 / (tl.exp2(scores * (scale * 2.0 * LOG2_E / soft_cap)) + 1.0)
        exponents = tanh * (soft_cap * LOG2_E)
    return exponents


@triton.jit
def attend_blocks(
    result,
    highest,
    total,
    query,
    first,
    end,
    head_pool,
    pages,
    position,
    last_position,
    key_scale,
    soft_cap,
    window,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Go on with the softmax of a tile over the blocks of keys from `first` to `end`.

    Args:
        result, highest, total: [M, head_dim], [M], [M] float32: sum of weights times values, largest exponent, sum of
            weights, the last two relative to it.
        head_pool: the kv head in page 0.
        pages: page table of the sequence.
        position: [M], of each row of the tile; `last_position` is the largest.
        MASKED: some rows may not see all keys of these blocks. What lies behind `last_position` is not even read.
    """
    BLOCK_DIM: tl.constexpr = triton.next_power_of_2(HEAD_DIM)
    column = tl.arange(0, BLOCK_DIM)
    for block in tl.range(first, end):
        key = block * KEYS + tl.arange(0, KEYS)
        if MASKED:
            written = key <= last_position
            page = tl.load(pages + key // PAGE_SIZE, mask=written, other=0)
        else:
            page = tl.load(pages + key // PAGE_SIZE)
        at = head_pool + (page.to(tl.int64) * PAGE_STRIDE + (key % PAGE_SIZE) * HEAD_DIM)[:, None] + column[None, :]
        readable = (column < HEAD_DIM)[None, :]
        if MASKED:
            readable &= written[:, None]
        keys = tl.load(at, mask=readable, other=0)
        values = tl.load(at + PAGE_STRIDE // 2, mask=readable, other=0)
        keys = from_stored(keys, FLOAT8, query.dtype)
        exponents = capped(tl.dot(query, tl.trans(keys)), key_scale, soft_cap)
        if MASKED:
            seen = key[None, :] <= position[:, None]
            if window is not None:
                seen &= key[None, :] > position[:, None] - window
            exponents = tl.where(seen, exponents, float("-inf"))
        higher = tl.maximum(highest, tl.max(exponents, 1))
        weights = tl.exp2(exponents - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        values = from_stored(values, FLOAT8, query.dtype)
        result = tl.dot(weights.to(query.dtype), values, result * shrink[:, None])
        highest = higher
    return result, highest, total


@triton.jit
def finished(result, highest, total, heads, sinks, value_scale, NUM_HEADS: tl.constexpr):
    """Divide by the sum of the weights, with the sink's: [M, BLOCK_DIM] float32."""
    if sinks is not None:
        sink = tl.load(sinks + heads, mask=heads < NUM_HEADS, other=0.0) * LOG2_E
        higher = tl.maximum(highest, sink)
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.exp2(sink - higher)
        result = result * shrink[:, None]
    return result * (value_scale / total)[:, None]


@triton.jit
def attend_tile(
    outputs,
    queries,
    pool,
    scales,
    sinks,
    partial_results,
    partial_sums,
    pages,
    query_start,
    context,
    num_rows,
    first_row,
    kv_head,
    first_unit,
    end_unit,
    is_whole,
    scale,
    soft_cap,
    window,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    M: tl.constexpr,
    KEYS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_INTERIOR: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Attention of a tile of M rows over its units from `first_unit` to `end_unit`, written as a result if these are
    all of them, and as a partial one otherwise.

    Args:
        partial_results, partial_sums: [TILE, HEAD_DIM] and [2, TILE] float32, of this program and part.
        HAS_INTERIOR: blocks that all rows see whole are so many that they should do without masks.
    """
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    ROWS: tl.constexpr = M // GROUP
    BLOCK_DIM: tl.constexpr = triton.next_power_of_2(HEAD_DIM)
    index = tl.arange(0, M)
    column = tl.arange(0, BLOCK_DIM)
    row = first_row + index // GROUP
    head = kv_head * GROUP + index % GROUP
    exists = (index < ROWS * GROUP) & (row < num_rows)
    inside = exists[:, None] & (column < HEAD_DIM)[None, :]
    row_at = (query_start + row).to(tl.int64) * (NUM_HEADS * HEAD_DIM) + head * HEAD_DIM
    query = tl.load(queries + row_at[:, None] + column[None, :], mask=inside, other=0.0)

    chunk_start = context - num_rows
    position = chunk_start + row
    first_position = chunk_start + first_row
    last_position = chunk_start + tl.minimum(first_row + ROWS, num_rows) - 1
    begin = first_block(first_position, window, KEYS)
    first, end = begin + first_unit, begin + end_unit
    key_scale, value_scale = scale, 1.0
    if FLOAT8 != 0:
        key_scale, value_scale = scale * tl.load(scales), tl.load(scales + 1)

    result = tl.zeros([M, BLOCK_DIM], tl.float32)
    highest = tl.full([M], LOWEST, tl.float32)
    total = tl.zeros([M], tl.float32)
    # Blocks [first, left) straddle the window's edge, [left, right) are seen whole by all rows, [right, end) hold the
    # diagonal. Without an interior all of them count as the last.
    left = first
    right = first
    if HAS_INTERIOR:
        if window is not None:
            left = tl.minimum(tl.maximum((last_position - window + KEYS) // KEYS, first), end)
        right = tl.maximum(tl.minimum((first_position + 1) // KEYS, end), left)
    FIRST_PART: tl.constexpr = (1 if window is None else 0) if HAS_INTERIOR else 2
    for part in tl.static_range(FIRST_PART, 3):
        result, highest, total = attend_blocks(
            result,
            highest,
            total,
            query,
            first if part == 0 else (left if part == 1 else right),
            left if part == 0 else (right if part == 1 else end),
            pool + kv_head * (PAGE_SIZE * HEAD_DIM),
            pages,
            position,
            last_position,
            key_scale,
            soft_cap,
            window,
            HEAD_DIM,
            PAGE_SIZE,
            2 * NUM_KV_HEADS * PAGE_SIZE * HEAD_DIM,
            KEYS,
            part != 1,
            FLOAT8,
        )
    if is_whole:
        result = finished(result, highest, total, head, sinks, value_scale, NUM_HEADS)
        tl.store(outputs + row_at[:, None] + column[None, :], result.to(outputs.dtype.element_ty), mask=inside)
    else:
        tl.store(partial_results + index[:, None] * HEAD_DIM + column[None, :], result, mask=inside)
        tl.store(partial_sums + index, highest, mask=exists)
        tl.store(partial_sums + TILE + index, total, mask=exists)


@triton.jit
def clear_padding(outputs, first_row, end_row, program, num_programs, WIDTH: tl.constexpr):
    """Zero the rows that only fill a bucket up: what is made from them later stays finite."""
    BLOCK: tl.constexpr = 1024
    for row in tl.range(first_row + program, end_row, num_programs, num_stages=1):
        for begin in tl.range(0, WIDTH, BLOCK, num_stages=1):
            column = begin + tl.arange(0, BLOCK)
            zeros = tl.zeros([BLOCK], outputs.dtype.element_ty)
            tl.store(outputs + row.to(tl.int64) * WIDTH + column, zeros, mask=column < WIDTH)


@triton.jit(
    do_not_specialize=["num_chunks", "num_tiles", "end_row", "seat_stride", "scale", "soft_cap", "window"],
    do_not_specialize_on_alignment=[
        "scales",
        "tile_ends",
        "tile_chunks",
        "tile_rows",
        "query_starts",
        "context_lens",
        "chunk_seats",
        "page_table",
    ],
)
def attend_kernel(
    outputs,
    queries,
    pool,
    scales,
    sinks,
    partial_results,
    partial_sums,
    tile_ends,
    tile_chunks,
    tile_rows,
    query_starts,
    context_lens,
    chunk_seats,
    page_table,
    num_chunks,
    num_tiles,
    end_row,
    seat_stride,
    scale,
    soft_cap,
    window,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SHORT_TILE: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """As many programs as the GPU holds at once, each with its share of the units.

    Args:
        outputs, queries: [end_row, heads, head_dim]; rows behind the last chunk become 0.
        pool: a layer, [pages, 2, kv_heads, page_size, head_dim].
        scales: [2] float32, of keys and values in 8 bits.
        sinks: [heads] float32 or None.
        partial_results, partial_sums: [programs, 2, TILE, HEAD_DIM] and [programs, 2, 2, TILE] float32 results.
        tile_ends, tile_chunks, tile_rows: [num_tiles] int32, see `plan_kernel`.
        query_starts, context_lens, chunk_seats: [num_chunks + 1], [num_chunks], [num_chunks] int32.
        page_table: [seats, max_pages] int32, a row each `seat_stride`.
        SHORT_TILE: rows of the tiles of short chunks.
        TILE: rows of the tiles of all others; the same as `SHORT_TILE` if there are no others.
    """
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    num_rows_of_step = tl.load(query_starts + num_chunks)
    clear_padding(outputs, num_rows_of_step, end_row, program, num_programs, NUM_HEADS * HEAD_DIM)
    units_of_head = tl.load(tile_ends + num_tiles - 1)
    first_unit = share(program, num_programs, units_of_head * NUM_KV_HEADS)
    end_unit = share(program + 1, num_programs, units_of_head * NUM_KV_HEADS)
    unit = first_unit
    while unit < end_unit:
        kv_head = unit // units_of_head
        head_unit = kv_head * units_of_head
        tile = find_tile(tile_ends, num_tiles, unit - head_unit, BLOCK_ENDS)
        tile_begin = head_unit + tl.load(tile_ends + tile - 1, mask=tile > 0, other=0)
        tile_end = head_unit + tl.load(tile_ends + tile)
        chunk = tl.load(tile_chunks + tile)
        first_row = tl.load(tile_rows + tile)
        query_start = tl.load(query_starts + chunk)
        num_rows = tl.load(query_starts + chunk + 1) - query_start
        context = tl.load(context_lens + chunk)
        pages = page_table + tl.load(chunk_seats + chunk).to(tl.int64) * seat_stride
        stop = tl.minimum(tile_end, end_unit)
        part = program * 2 + (unit != first_unit).to(tl.int32)
        for kind in tl.static_range(1 if SHORT_TILE == TILE else 2):
            if (num_rows <= SHORT_TILE // GROUP) == (kind == 0):
                attend_tile(
                    outputs,
                    queries,
                    pool,
                    scales,
                    sinks,
                    partial_results + part * (TILE * HEAD_DIM),
                    partial_sums + part * (2 * TILE),
                    pages,
                    query_start,
                    context,
                    num_rows,
                    first_row,
                    kv_head,
                    unit - tile_begin,
                    stop - tile_begin,
                    (unit == tile_begin) & (stop == tile_end),
                    scale,
                    soft_cap,
                    window,
                    NUM_HEADS,
                    NUM_KV_HEADS,
                    HEAD_DIM,
                    PAGE_SIZE,
                    SHORT_TILE if kind == 0 else TILE,
                    KEYS,
                    TILE,
                    kind == 1,
                    FLOAT8,
                )
        unit = stop


@triton.jit(
    do_not_specialize=["num_programs", "num_tiles"],
    do_not_specialize_on_alignment=[
        "scales",
        "tile_ends",
        "tile_chunks",
        "tile_rows",
        "query_starts",
    ],
)
def merge_kernel(
    outputs,
    scales,
    sinks,
    partial_results,
    partial_sums,
    tile_ends,
    tile_chunks,
    tile_rows,
    query_starts,
    num_programs,
    num_tiles,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Program (cut, slab of ROWS rows of a tile): join what the `num_programs` programs of `attend_kernel` left of the
    tile in which the cut between programs number `cut` and `cut + 1` falls, if it is the tile's first cut.

    Args:
        PARTS: partial results that are read at once.
    """
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    BLOCK_DIM: tl.constexpr = triton.next_power_of_2(HEAD_DIM)
    before = tl.program_id(0)
    units_of_head = tl.load(tile_ends + num_tiles - 1)
    units = units_of_head * NUM_KV_HEADS
    cut = share(before + 1, num_programs, units)
    if cut < units:
        kv_head = cut // units_of_head
        head_unit = kv_head * units_of_head
        tile = find_tile(tile_ends, num_tiles, cut - head_unit, BLOCK_ENDS)
        tile_begin = head_unit + tl.load(tile_ends + tile - 1, mask=tile > 0, other=0)
        begin_of_before = share(before, num_programs, units)
        if (tile_begin < cut) & (begin_of_before <= tile_begin):
            last = owner(head_unit + tl.load(tile_ends + tile) - 1, num_programs, units)
            chunk = tl.load(tile_chunks + tile)
            query_start = tl.load(query_starts + chunk)
            num_rows = tl.load(query_starts + chunk + 1) - query_start
            index = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
            row = tl.load(tile_rows + tile) + index // GROUP
            head = kv_head * GROUP + index % GROUP
            exists = (index < TILE // GROUP * GROUP) & (row < num_rows)
            column = tl.arange(0, BLOCK_DIM)
            result = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
            highest = tl.full([ROWS], LOWEST, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            for first in tl.range(before, last + 1, PARTS):
                program = first + tl.arange(0, PARTS)
                # The tile is the first one of all its programs but the one before the cut, if that began earlier.
                began_earlier = (program == before) & (begin_of_before < tile_begin)
                part = program * 2 + began_earlier.to(tl.int32)
                there = (program <= last)[:, None] & exists[None, :]
                sums_at = partial_sums + part[:, None] * (2 * TILE) + index[None, :]
                highest_of_part = tl.load(sums_at, mask=there, other=LOWEST)
                total_of_part = tl.load(sums_at + TILE, mask=there, other=0.0)
                at = (part * TILE)[:, None] + index[None, :]
                results = tl.load(
                    partial_results + (at * HEAD_DIM)[:, :, None] + column[None, None, :],
                    mask=there[:, :, None] & (column < HEAD_DIM)[None, None, :],
                    other=0.0,
                )
                higher = tl.maximum(highest, tl.max(highest_of_part, 0))
                shrink = tl.exp2(highest - higher)
                shrink_of_part = tl.exp2(highest_of_part - higher[None, :])
                total = total * shrink + tl.sum(total_of_part * shrink_of_part, 0)
                result = result * shrink[:, None] + tl.sum(results * shrink_of_part[:, :, None], 0)
                highest = higher
            value_scale = 1.0
            if FLOAT8 != 0:
                value_scale = tl.load(scales + 1)
            result = finished(result, highest, total, head, sinks, value_scale, NUM_HEADS)
            row_at = (query_start + row).to(tl.int64) * (NUM_HEADS * HEAD_DIM) + head * HEAD_DIM
            tl.store(
                outputs + row_at[:, None] + column[None, :],
                result.to(outputs.dtype.element_ty),
                mask=exists[:, None] & (column < HEAD_DIM)[None, :],
            )
