"""Device code of attention of one tile of rows.

Flash attention (Dao 2023, arXiv 2307.08691) over the shares of `attention_plan_kernels.py`. Row `i` of a tile is query
head `i % GROUP` of the kv head, of row `i // GROUP` of the tile's part of the chunk: heads that share keys and values
share their loads, too. Softmax is in base 2 and float32; weights are rounded to the dtype of the queries for the second
product.
"""

import triton
import triton.language as tl

from limelight.kernels.triton.attention_plan_kernels import first_block
from limelight.kernels.triton.float8_kernels import from_stored

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""Where the running maximum begins: finite, because a row may see none of the keys of a block, and far below all scores
that are not minus infinity.
"""


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
    # Page numbers are read a block ahead: the compiler then fetches keys and values as early as its stages allow, which
    # it does not for loads whose addresses are loaded in the same round of the loop.
    key = first * KEYS + tl.arange(0, KEYS)
    page = tl.load(pages + key // PAGE_SIZE, mask=key <= last_position, other=0)
    for block in tl.range(first, end):
        key = block * KEYS + tl.arange(0, KEYS)
        at = head_pool + (page.to(tl.int64) * PAGE_STRIDE + (key % PAGE_SIZE) * HEAD_DIM)[:, None] + column[None, :]
        following = key + KEYS
        page = tl.load(pages + following // PAGE_SIZE, mask=following <= last_position, other=0)
        readable = (column < HEAD_DIM)[None, :]
        if MASKED:
            readable &= (key <= last_position)[:, None]
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
