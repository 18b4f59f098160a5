"""Device code that writes rows in 8 bits."""

import triton
import triton.language as tl

from limelight.kernels.triton.float8_kernels import to_stored


@triton.jit
def quantize_rows_kernel(
    rows, codes, scales, num_columns, BLOCK: tl.constexpr, LARGEST: tl.constexpr, FLOAT8: tl.constexpr
):
    """One row for each program: its largest number first, then the codes."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    # A NaN is kept, and what is infinite becomes one: both must reach the logits, where they are told.
    largest = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, num_columns, BLOCK):
        inside = first + columns < num_columns
        values = tl.load(rows + row * num_columns + first + columns, mask=inside, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values), propagate_nan=tl.PropagateNan.ALL)
    most = tl.max(largest, 0)
    most = tl.where(tl.sum(tl.where(largest == largest, 0, 1), 0) > 0, float("nan"), most)
    scale = tl.where(most == 0, 1.0, most / LARGEST)
    tl.store(scales + row, scale)
    for first in range(0, num_columns, BLOCK):
        inside = first + columns < num_columns
        values = tl.load(rows + row * num_columns + first + columns, mask=inside, other=0.0).to(tl.float32)
        stored = to_stored(values, scale, FLOAT8, tl.uint8)
        tl.store(codes + row * num_columns + first + columns, stored, mask=inside)
