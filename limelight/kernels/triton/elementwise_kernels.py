"""Device code of what a pass does between products of matrices. All compute in float32 and round once."""

import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(
    hidden, residual, weight, normed, total, epsilon, size, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr
):
    """Programs: rows. The sum is rounded before it is normed; `total` may be `residual`, and is unused without one."""
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    row = tl.program_id(0).to(tl.int64) * size
    values = tl.load(hidden + row + columns, mask=inside, other=0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + row + columns, mask=inside, other=0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row + columns, rounded, mask=inside)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / size + epsilon)
    values *= scale * tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    tl.store(normed + row + columns, values.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def gate_kernel(gate_up, gated, limit, size, ACTIVATION: tl.constexpr, HAS_LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    """Programs: rows, and blocks of columns."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    row = tl.program_id(0).to(tl.int64) * size
    gate = tl.load(gate_up + 2 * row + columns, mask=inside, other=0).to(tl.float32)
    up = tl.load(gate_up + 2 * row + size + columns, mask=inside, other=0).to(tl.float32)
    if HAS_LIMIT:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        gated_values = gate * tl.sigmoid(1.702 * gate) * (up + 1)
    elif ACTIVATION == "silu":
        gated_values = gate * tl.sigmoid(gate) * up
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(x)) / 2 is the sigmoid of 2 x.
        gated_values = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    else:
        gated_values = 0.5 * gate * (1 + tl.erf(0.7071067811865476 * gate)) * up
    tl.store(gated + row + columns, gated_values.to(gated.dtype.element_ty), mask=inside)


@triton.jit
def embed_kernel(token_ids, table, rows, scale, size, BLOCK: tl.constexpr):
    """Programs: tokens, and blocks of columns."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    token = tl.load(token_ids + tl.program_id(0)).to(tl.int64)
    values = tl.load(table + token * size + columns, mask=inside, other=0).to(tl.float32) * scale
    out = rows + tl.program_id(0).to(tl.int64) * size
    tl.store(out + columns, values.to(rows.dtype.element_ty), mask=inside)


@triton.jit
def capped_logits_kernel(values, logits, cap, size, BLOCK: tl.constexpr):
    """Programs: rows, and blocks of columns. cap * tanh(x / cap)."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    row = tl.program_id(0).to(tl.int64) * size
    scaled = tl.load(values + row + columns, mask=inside, other=0).to(tl.float32) / cap
    # Of the absolute value, so that the exponential cannot overflow.
    decayed = tl.exp(-2 * tl.abs(scaled))
    bounded = cap * (1 - decayed) / (1 + decayed)
    tl.store(logits + row + columns, tl.where(scaled < 0, -bounded, bounded), mask=inside)


@triton.jit
def add_gated_kernel(outputs, scores, values, sums, size, BLOCK: tl.constexpr):
    """Programs: rows, and blocks of columns."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    row = tl.program_id(0).to(tl.int64) * size
    share = tl.sigmoid(tl.load(scores + tl.program_id(0)).to(tl.float32))
    added = share * tl.load(values + row + columns, mask=inside, other=0).to(tl.float32)
    added += tl.load(outputs + row + columns, mask=inside, other=0).to(tl.float32)
    tl.store(sums + row + columns, added.to(sums.dtype.element_ty), mask=inside)
