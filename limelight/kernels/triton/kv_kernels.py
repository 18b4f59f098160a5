"""Device code that fills the KV pool. A layer of it is [pages, 2, kv_heads, page_size, head_dim], keys first: what one
head of a page holds is one piece of memory.
"""

import triton
import triton.language as tl

from limelight.kernels.triton.float8_kernels import IN_16_BITS, to_stored


@triton.jit
def slot_of(
    pool,
    slot,
    heads,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Pointers to the keys of `heads` [n] in a slot; the values lie `NUM_KV_HEADS * PAGE_SIZE * HEAD_DIM` behind."""
    page, offset = slot // PAGE_SIZE, slot % PAGE_SIZE
    return (
        pool + page.to(tl.int64) * (2 * NUM_KV_HEADS * PAGE_SIZE * HEAD_DIM) + (heads * PAGE_SIZE + offset) * HEAD_DIM
    )


@triton.jit
def copy_heads(
    source,
    target,
    exists,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Copy whole heads from pointers `source` [n] to `target` [n] where they exist."""
    column = tl.arange(0, BLOCK_DIM)
    inside = exists[:, None] & (column < HEAD_DIM)[None, :]
    values = tl.load(source[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(target[:, None] + column[None, :], to_stored(values, scale, FLOAT8, target.dtype.element_ty), mask=inside)


@triton.jit
def rotate_heads(
    source,
    target,
    exists,
    scale,
    cos,
    sin,
    norm,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Norm and rotate heads from pointers `source` [n] to `target` [n]: dimension i < HALF is paired with HALF + i, and
    what lies behind 2 * HALF is not rotated. `cos` and `sin` point to the row of the tables.
    """
    column = tl.arange(0, BLOCK_HALF)
    is_pair = column < HALF
    inside = exists[:, None] & is_pair[None, :]
    first_at = source[:, None] + column[None, :]
    first = tl.load(first_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_at + HALF, mask=inside, other=0.0).to(tl.float32)
    if BLOCK_REST > 0:
        behind = 2 * HALF + tl.arange(0, BLOCK_REST)
        is_rest = behind < HEAD_DIM
        rest_inside = exists[:, None] & is_rest[None, :]
        rest = tl.load(source[:, None] + behind[None, :], mask=rest_inside, other=0.0).to(tl.float32)

    if norm is not None:
        dtype: tl.constexpr = source.dtype.element_ty
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if BLOCK_REST > 0:
            squares += tl.sum(rest * rest, 1)
        factor = tl.rsqrt(squares / HEAD_DIM + epsilon)[:, None]
        # Rounded as a norm of its own would have left them.
        weight = tl.load(norm + column, mask=is_pair, other=0.0).to(tl.float32)[None, :]
        first = (first * factor * weight).to(dtype).to(tl.float32)
        weight = tl.load(norm + HALF + column, mask=is_pair, other=0.0).to(tl.float32)[None, :]
        second = (second * factor * weight).to(dtype).to(tl.float32)
        if BLOCK_REST > 0:
            weight = tl.load(norm + behind, mask=is_rest, other=0.0).to(tl.float32)[None, :]
            rest = (rest * factor * weight).to(dtype).to(tl.float32)

    cosine = tl.load(cos + column, mask=is_pair, other=0.0)[None, :]
    sine = tl.load(sin + column, mask=is_pair, other=0.0)[None, :]
    target_dtype: tl.constexpr = target.dtype.element_ty
    target_at = target[:, None] + column[None, :]
    tl.store(target_at, to_stored(first * cosine - second * sine, scale, FLOAT8, target_dtype), mask=inside)
    tl.store(target_at + HALF, to_stored(second * cosine + first * sine, scale, FLOAT8, target_dtype), mask=inside)
    if BLOCK_REST > 0:
        tl.store(
            target[:, None] + behind[None, :],
            to_stored(rest, scale, FLOAT8, target_dtype),
            mask=rest_inside,
        )


@triton.jit(do_not_specialize=["epsilon"], do_not_specialize_on_alignment=["slots", "positions", "scales"])
def rotate_and_write_kernel(
    queries,
    pool,
    qkv,
    scales,
    slots,
    positions,
    cos,
    sin,
    q_norm,
    k_norm,
    epsilon,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Program (row, block of heads): query heads to `queries`, key and value heads to the row's slot, if it has one.

    Args:
        queries: [tokens, heads, head_dim].
        pool: a layer.
        qkv: [tokens, heads + 2 * kv_heads, head_dim].
        scales: [2] float32, of keys and values in 8 bits.
        slots, positions: [tokens] int32.
        cos, sin: [max_positions, HALF] float32.
        q_norm, k_norm: [head_dim] or None.
    """
    QUERY_BLOCKS: tl.constexpr = (NUM_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    KV_BLOCKS: tl.constexpr = (NUM_KV_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    row = tl.program_id(0)
    block = tl.program_id(1)
    slot = tl.load(slots + row)
    num_written = tl.where(slot >= 0, NUM_KV_HEADS, 0)
    row_qkv = qkv + row.to(tl.int64) * ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    table_row = tl.load(positions + row).to(tl.int64) * HALF
    head = tl.arange(0, BLOCK_HEADS)
    if block < QUERY_BLOCKS:
        head += block * BLOCK_HEADS
        target = queries + row.to(tl.int64) * (NUM_HEADS * HEAD_DIM) + head * HEAD_DIM
        rotate_heads(
            row_qkv + head * HEAD_DIM,
            target,
            head < NUM_HEADS,
            1.0,
            cos + table_row,
            sin + table_row,
            q_norm,
            epsilon,
            HEAD_DIM,
            HALF,
            BLOCK_HALF,
            BLOCK_REST,
            IN_16_BITS,
        )
    elif block < QUERY_BLOCKS + KV_BLOCKS:
        head += (block - QUERY_BLOCKS) * BLOCK_HEADS
        rotate_heads(
            row_qkv + (NUM_HEADS + head) * HEAD_DIM,
            slot_of(pool, slot, head, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE),
            head < num_written,
            tl.load(scales),
            cos + table_row,
            sin + table_row,
            k_norm,
            epsilon,
            HEAD_DIM,
            HALF,
            BLOCK_HALF,
            BLOCK_REST,
            FLOAT8,
        )
    else:
        head += (block - QUERY_BLOCKS - KV_BLOCKS) * BLOCK_HEADS
        copy_heads(
            row_qkv + (NUM_HEADS + NUM_KV_HEADS + head) * HEAD_DIM,
            slot_of(pool, slot, NUM_KV_HEADS + head, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE),
            head < num_written,
            tl.load(scales + 1),
            HEAD_DIM,
            BLOCK_DIM,
            FLOAT8,
        )


@triton.jit(do_not_specialize_on_alignment=["slots", "scales"])
def write_kernel(
    pool,
    keys,
    values,
    scales,
    slots,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Program (row, block of heads): `keys` and `values` [tokens, kv_heads, head_dim] go to the row's slot, if any."""
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    slot = tl.load(slots + row)
    exists = head < tl.where(slot >= 0, NUM_KV_HEADS, 0)
    source = row.to(tl.int64) * (NUM_KV_HEADS * HEAD_DIM) + head * HEAD_DIM
    keys_at = slot_of(pool, slot, head, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE)
    values_at = slot_of(pool, slot, NUM_KV_HEADS + head, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE)
    copy_heads(keys + source, keys_at, exists, tl.load(scales), HEAD_DIM, BLOCK_DIM, FLOAT8)
    copy_heads(values + source, values_at, exists, tl.load(scales + 1), HEAD_DIM, BLOCK_DIM, FLOAT8)
