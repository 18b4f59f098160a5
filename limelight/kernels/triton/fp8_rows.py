"""Rows of a step in 8 bits, for products with FP8 weights: each with the scale that makes the best use of them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from limelight.kernels.triton.build import KernelBuild
from limelight.kernels.triton.float8_kernels import BY_BITS, NATIVE
from limelight.kernels.triton.fp8_rows_kernels import quantize_rows_kernel
from limelight.kernels.triton.weight_formats import FP8_CAPABILITY, FP8_LARGEST

BLOCK_COLUMNS = 2048
NUM_WARPS = 8


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`rows` [tokens, columns], contiguous -> (e4m3 [tokens, columns], scales [tokens, 1] float32).

    A row with values that are not finite becomes NaN; one of zeros has the scale 1.
    """
    num_rows, num_columns = rows.shape
    codes = torch.empty(num_rows, num_columns, dtype=torch.float8_e4m3fn, device=rows.device)
    scales = torch.empty(num_rows, 1, dtype=torch.float32, device=rows.device)
    if num_rows:
        quantize_rows_kernel[(num_rows,)](
            rows,
            codes.view(torch.uint8),
            scales,
            num_columns,
            BLOCK=BLOCK_COLUMNS,
            LARGEST=FP8_LARGEST,
            FLOAT8=(NATIVE if rows.is_cuda else BY_BITS).value,  # the interpreter rounds by bits alone as it should
            num_warps=NUM_WARPS,
        )
    return codes, scales


def builds(capability: int) -> Iterator[KernelBuild]:
    """What the function above launches, where there are products in 8 bits."""
    if capability >= FP8_CAPABILITY:
        arguments = {
            "rows": "*bf16",
            "codes": "*u8",
            "scales": "*fp32",
            "num_columns": "i32",
            "BLOCK": BLOCK_COLUMNS,
            "LARGEST": FP8_LARGEST,
            "FLOAT8": NATIVE.value,
        }
        yield KernelBuild("rows in 8 bits", quantize_rows_kernel, arguments, num_warps=NUM_WARPS, num_stages=3)
