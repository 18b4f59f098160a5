"""Device code of attention over pages: one launch for whatever a step consists of."""

import triton
import triton.language as tl

from limelight.kernels.triton.attention_plan_kernels import FAR, find_tile, share
from limelight.kernels.triton.attention_tile_kernels import attend_tile


@triton.jit
def clear_padding(outputs, first_row, end_row, program, num_programs, WIDTH: tl.constexpr):
    """Zero the rows that only fill a bucket up: what is made from them later stays finite."""
    BLOCK: tl.constexpr = 1024
    for row in tl.range(first_row + program, end_row, num_programs, num_stages=1):
        for begin in tl.range(0, WIDTH, BLOCK, num_stages=1):
            column = begin + tl.arange(0, BLOCK)
            zeros = tl.zeros([BLOCK], outputs.dtype.element_ty)
            tl.store(outputs + row * WIDTH + column, zeros, mask=column < WIDTH)


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
    # Where there is one kind of tiles only, all chunks have it.
    SHORT_ROWS: tl.constexpr = FAR if SHORT_TILE == TILE else SHORT_TILE // (NUM_HEADS // NUM_KV_HEADS)
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
        tile = find_tile(tile_ends, num_tiles, unit - head_unit)
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
            if (num_rows <= SHORT_ROWS) == (kind == 0):
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
