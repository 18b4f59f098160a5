"""Device code of experts: which ones a row takes, and products whose rows each have a matrix of their own."""

import triton
import triton.language as tl


@triton.jit
def route_kernel(
    scores,
    chosen,
    shares,
    num_experts,
    num_chosen,
    CHOSEN_FIRST: tl.constexpr,
    NORMALIZE: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    """Programs: rows. Of equal ones the first comes first."""
    row = tl.program_id(0)
    experts = tl.arange(0, EXPERTS)
    inside = experts < num_experts
    score = tl.load(scores + row * num_experts + experts, mask=inside, other=float("-inf")).to(tl.float32)
    score = tl.where(score != score, float("-inf"), score)
    left = score
    if not CHOSEN_FIRST:
        left = tl.exp(score - tl.max(score, axis=0))
        # Behind all shares, which may be zero.
        left = tl.where(inside, left / tl.sum(left, axis=0), -1.0)
    places = tl.arange(0, CHOSEN)
    taken = tl.zeros([CHOSEN], tl.int32)
    share = tl.full([CHOSEN], float("-inf"), tl.float32)
    for place in range(num_chosen):
        best, expert = tl.max(left, axis=0, return_indices=True)
        expert = tl.minimum(expert, num_experts - 1)
        taken = tl.where(places == place, expert, taken)
        share = tl.where(places == place, best, share)
        left = tl.where(experts == expert, float("-inf"), left)
    present = places < num_chosen
    if CHOSEN_FIRST:
        share = tl.exp(share - tl.max(share, axis=0))
        share = share / tl.sum(share, axis=0)
    elif NORMALIZE:
        share = share / tl.sum(tl.where(present, share, 0.0), axis=0)
    tl.store(chosen + row * num_chosen + places, taken.to(tl.int64), mask=present)
    tl.store(shares + row * num_chosen + places, share, mask=present)


@triton.jit(do_not_specialize=["num_rows"])
def grouped_product_kernel(
    rows,
    weights,
    biases,
    ends,
    products,
    num_rows,
    num_experts,
    NUM_INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    WEIGHT_ROW: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):
    """Programs: blocks of outputs, and tiles of rows that share an expert. Those behind the last tile do nothing.

    Args:
        rows: [num_rows, NUM_INPUTS], sorted by expert; `ends` [experts] int32 is where those of each end.
        weights: [experts, NUM_OUTPUTS, WEIGHT_ROW].
    """
    experts = tl.arange(0, EXPERTS)
    end = tl.load(ends + experts, mask=experts < num_experts, other=0)
    start = tl.load(ends + experts - 1, mask=(experts > 0) & (experts < num_experts), other=0)
    num_tiles = (end - start + BLOCK_ROWS - 1) // BLOCK_ROWS
    tiles_end = tl.cumsum(num_tiles, axis=0)
    tile = tl.program_id(1)
    expert = tl.sum((tiles_end <= tile).to(tl.int32), axis=0)
    if expert >= num_experts:
        return
    is_expert = experts == expert
    first = tl.sum(tl.where(is_expert, start + (tile - tiles_end + num_tiles) * BLOCK_ROWS, 0), axis=0)
    last = tl.minimum(tl.sum(tl.where(is_expert, end, 0), axis=0), num_rows)

    row = first + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    has_row, has_output = row < last, output < NUM_OUTPUTS
    row_at = rows + row.to(tl.int64) * NUM_INPUTS
    weight_at = weights + (expert.to(tl.int64) * NUM_OUTPUTS + output) * WEIGHT_ROW
    total = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for begin in range(0, NUM_INPUTS, BLOCK_INPUTS):
        column = begin + tl.arange(0, BLOCK_INPUTS)
        has_column = column < NUM_INPUTS
        values = tl.load(row_at[:, None] + column[None, :], mask=has_row[:, None] & has_column[None, :], other=0.0)
        weight = tl.load(
            weight_at[None, :] + column[:, None], mask=has_output[None, :] & has_column[:, None], other=0.0
        )
        total = tl.dot(values, weight, total, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(biases + expert * NUM_OUTPUTS + output, mask=has_output, other=0.0).to(tl.float32)
        total += bias[None, :]
    out = products + row.to(tl.int64)[:, None] * NUM_OUTPUTS + output[None, :]
    tl.store(out, total.to(products.dtype.element_ty), mask=has_row[:, None] & has_output[None, :])
