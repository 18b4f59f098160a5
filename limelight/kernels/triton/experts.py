"""Experts without a wait: torch's grouped product asks the host where each group ends, but on Hopper with bfloat16."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from limelight.kernels.reference import ReferenceExperts
from limelight.kernels.triton.build import KernelBuild
from limelight.kernels.triton.elementwise import gate
from limelight.kernels.triton.experts_kernels import grouped_product_kernel, route_kernel

ROUTE_WARPS = 1
FEW_ROWS, MANY_ROWS = 16, 64
"""Rows of a tile, by how many an expert has on average: a tile reads its expert's matrix once."""
BLOCK_OUTPUTS, BLOCK_INPUTS = 64, 64
PRODUCT_WARPS, PRODUCT_STAGES = 4, 4


def route(scores: Tensor, num_chosen: int, *, chosen_first: bool, normalize: bool) -> tuple[Tensor, Tensor]:
    """See `Kernels.route`."""
    tokens, num_experts = scores.shape
    chosen = scores.new_empty(tokens, num_chosen, dtype=torch.int64)
    shares = scores.new_empty(tokens, num_chosen, dtype=torch.float32)
    route_kernel[(tokens,)](
        scores,
        chosen,
        shares,
        num_experts,
        num_chosen,
        CHOSEN_FIRST=chosen_first,
        NORMALIZE=normalize,
        EXPERTS=next_power_of_2(num_experts),
        CHOSEN=next_power_of_2(num_chosen),
        num_warps=ROUTE_WARPS,
    )
    return chosen, shares


def experts(inputs: Tensor, chosen: Tensor, shares: Tensor, packed: ReferenceExperts) -> Tensor:
    """Rows sorted by expert, two grouped products, and each row's results added up in the order of its choice."""
    tokens, num_chosen = chosen.shape
    expert_of_row, order = chosen.flatten().sort(stable=True)
    numbers = torch.arange(packed.down.shape[0], device=chosen.device)
    ends = torch.searchsorted(expert_of_row, numbers, right=True).to(torch.int32)
    rows = inputs.index_select(0, order // num_chosen)
    gate_up = grouped_product(rows, packed.gate_up, packed.gate_up_bias, ends)
    inner = gate(gate_up, packed.activation, packed.limit)
    sorted_outputs = grouped_product(inner, packed.down, packed.down_bias, ends)
    outputs = torch.empty_like(sorted_outputs).index_copy_(0, order, sorted_outputs)
    return torch.bmm(shares.to(outputs.dtype).unsqueeze(1), outputs.view(tokens, num_chosen, -1)).squeeze(1)


def grouped_product(rows: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    """`rows` [n, in], sorted by expert, each times its expert's matrix of `weight` [experts, out, at least in].

    Args:
        ends: [experts] int32, where the rows of each expert end.
    """
    num_rows, num_inputs = rows.shape
    num_experts, num_outputs, weight_row = weight.shape
    products = rows.new_empty(num_rows, num_outputs)
    block_rows = _block_rows(num_rows, num_experts)
    most_tiles = min(num_rows, num_rows // block_rows + num_experts)
    grouped_product_kernel[(cdiv(num_outputs, BLOCK_OUTPUTS), most_tiles)](
        rows,
        weight,
        bias,
        ends,
        products,
        num_rows,
        num_experts,
        NUM_INPUTS=num_inputs,
        NUM_OUTPUTS=num_outputs,
        WEIGHT_ROW=weight_row,
        HAS_BIAS=bias is not None,
        EXPERTS=next_power_of_2(num_experts),
        BLOCK_ROWS=block_rows,
        BLOCK_OUTPUTS=BLOCK_OUTPUTS,
        BLOCK_INPUTS=BLOCK_INPUTS,
        num_warps=PRODUCT_WARPS,
        num_stages=PRODUCT_STAGES,
    )
    return products


def _block_rows(num_rows: int, num_experts: int) -> int:
    return FEW_ROWS if num_rows <= FEW_ROWS * num_experts else MANY_ROWS


def builds(num_experts: int, num_chosen: int, hidden_size: int, inner: int, dtype: str) -> Iterator[KernelBuild]:
    """What `route` and the first product of `experts` launch for a model; the type by Triton's name."""
    words = dict.fromkeys(("num_experts", "num_chosen", "num_rows"), "i32")
    known: dict[str, object] = {
        **words,
        **dict.fromkeys(("scores", "rows", "weights", "biases", "products"), f"*{dtype}"),
        "chosen": "*i64",
        "shares": "*fp32",
        "ends": "*i32",
        "CHOSEN_FIRST": False,
        "NORMALIZE": True,
        "HAS_BIAS": True,
        "EXPERTS": next_power_of_2(num_experts),
        "CHOSEN": next_power_of_2(num_chosen),
        "NUM_INPUTS": hidden_size,
        "NUM_OUTPUTS": 2 * inner,
        "WEIGHT_ROW": hidden_size,
        "BLOCK_OUTPUTS": BLOCK_OUTPUTS,
        "BLOCK_INPUTS": BLOCK_INPUTS,
    }
    name = f"{num_chosen} of {num_experts} experts, {dtype}"
    arguments = {parameter.name: known[parameter.name] for parameter in route_kernel.params}
    yield KernelBuild(f"route, {name}", route_kernel, arguments, num_warps=ROUTE_WARPS, num_stages=3)
    for block_rows in (FEW_ROWS, MANY_ROWS):
        known["BLOCK_ROWS"] = block_rows
        arguments = {parameter.name: known[parameter.name] for parameter in grouped_product_kernel.params}
        yield KernelBuild(
            f"grouped product, {block_rows} rows, {name}",
            grouped_product_kernel,
            arguments,
            num_warps=PRODUCT_WARPS,
            num_stages=PRODUCT_STAGES,
        )
