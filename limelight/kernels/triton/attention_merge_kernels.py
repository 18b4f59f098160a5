"""Device code that joins what several programs have left of one tile of attention."""

import triton
import triton.language as tl

from limelight.kernels.triton.attention_plan_kernels import find_tile, owner, share
from limelight.kernels.triton.attention_tile_kernels import LOWEST, finished


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
        tile = find_tile(tile_ends, num_tiles, cut - head_unit)
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
