"""Device code that shares out attention: what there is to do is found on the device, once per step and window.

The work on one kv head is a row of *tiles*, each some rows of one chunk with all query heads that share the kv head. A
tile takes as many *units* as it attends to blocks of keys. The units of all tiles, one kv head behind the other, are
cut into equal shares, one per program, wherever the cut falls (stream-K, Osama et al. 2023, arXiv 2301.03598; for
attention Sanovar et al. 2024, arXiv 2405.10480). So programs finish together whatever the lengths, a long context is
spread over the whole GPU, and no program leaves more than two partial results: of its first and of its last tile.
"""

import triton
import triton.language as tl

FAR = tl.constexpr(2**31 - 1)


@triton.jit
def share(program, num_programs, total):
    """First unit of a program's share of `total`; the next program's first unit ends it."""
    each, more = total // num_programs, total % num_programs
    return program * each + tl.minimum(program, more)


@triton.jit
def owner(unit, num_programs, total):
    """The program in whose share a unit is."""
    each, more = total // num_programs, total % num_programs
    longer = more * (each + 1)
    return tl.where(unit < longer, unit // (each + 1), more + (unit - longer) // tl.maximum(each, 1))


@triton.jit
def find_tile(tile_ends, num_tiles, unit):
    """Number of the tile in which a unit of a kv head is. One read of all ends is faster than dependent ones."""
    BLOCK: tl.constexpr = 256
    number = 0
    for first in tl.range(0, num_tiles, BLOCK, num_stages=1):
        tile = first + tl.arange(0, BLOCK)
        ends = tl.load(tile_ends + tile, mask=tile < num_tiles, other=FAR)
        number += tl.sum((ends <= unit).to(tl.int32), 0)
    return number


@triton.jit
def first_block(first_position, window, KEYS: tl.constexpr):
    """The block of keys with the first one that a row at this position attends to."""
    block = first_position * 0
    if window is not None:
        block = tl.maximum(first_position - window + 1, 0) // KEYS
    return block


@triton.jit(
    do_not_specialize=["num_chunks", "num_tiles", "window"],
    do_not_specialize_on_alignment=["tile_ends", "tile_chunks", "tile_rows", "query_starts", "context_lens"],
)
def plan_kernel(
    tile_ends,
    tile_chunks,
    tile_rows,
    query_starts,
    context_lens,
    num_chunks,
    num_tiles,
    window,
    SHORT_ROWS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    CHUNK_BITS: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
):
    """One program: the tiles of a kv head.

    Args:
        tile_ends, tile_chunks, tile_rows: [num_tiles] int32 results: units up to the end of each tile, its chunk, and
            its first row within the chunk. Tiles that aren't there have no units.
        query_starts: [num_chunks + 1] int32.
        context_lens: [num_chunks] int32; 0 for chunks that aren't there.
        SHORT_ROWS: a chunk of no more rows is one tile.
        TILE_ROWS: rows of the tiles of all others.
        KEYS: of a unit.
        CHUNK_BITS: two to this is not less than `num_chunks`.
    """
    chunk = tl.arange(0, 1 << CHUNK_BITS)
    exists = chunk < num_chunks
    context = tl.load(context_lens + chunk, mask=exists, other=0)
    start = tl.load(query_starts + chunk, mask=exists, other=0)
    rows = tl.load(query_starts + chunk + 1, mask=exists, other=0) - start
    rows = tl.where(context > 0, rows, 0)
    tiles = tl.where(rows <= SHORT_ROWS, tl.minimum(rows, 1), (rows + TILE_ROWS - 1) // TILE_ROWS)
    ends = tl.cumsum(tiles, 0)
    all_tiles = tl.sum(tiles, 0)

    units = 0
    for first in tl.range(0, num_tiles, BLOCK_TILES, num_stages=1):
        tile = first + tl.arange(0, BLOCK_TILES)
        # How many chunks end at this tile or before: binary search, all tiles at once.
        found = tl.zeros([BLOCK_TILES], tl.int32)
        for bit in tl.static_range(CHUNK_BITS):
            further = found + (1 << (CHUNK_BITS - 1 - bit))
            found = tl.where(tl.gather(ends, further - 1, 0) <= tile, further, found)
        is_tile = tile < all_tiles
        tile_context = tl.gather(context, found, 0)
        tile_rows_of_chunk = tl.gather(rows, found, 0)
        row = (tile - tl.gather(ends - tiles, found, 0)) * TILE_ROWS
        position = tile_context - tile_rows_of_chunk + row
        last_row = tl.where(
            tile_rows_of_chunk <= SHORT_ROWS, tile_rows_of_chunk, tl.minimum(row + TILE_ROWS, tile_rows_of_chunk)
        )
        last_position = tile_context - tile_rows_of_chunk + last_row - 1
        blocks = last_position // KEYS - first_block(position, window, KEYS) + 1
        blocks = tl.where(is_tile, blocks, 0)
        inside = tile < num_tiles
        tl.store(tile_ends + tile, units + tl.cumsum(blocks, 0), mask=inside)
        tl.store(tile_chunks + tile, found, mask=inside)
        tl.store(tile_rows + tile, row, mask=inside)
        units += tl.sum(blocks, 0)
