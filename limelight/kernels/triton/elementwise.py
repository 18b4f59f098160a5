"""What a pass does between products of matrices, one launch each; see the methods of `Kernels` of the same names."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from limelight.kernels.triton import elementwise_kernels
from limelight.kernels.triton.build import KernelBuild

BLOCK = 1024
"""Columns of a program, 8 a thread, so that two bytes each are read 16 at a time."""
WARPS = 4
COLUMNS_OF_WARP = 256
MOST_WARPS = 16


def add_norm(hidden: Tensor, residual: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The sum lies where `residual` was."""
    tokens, size = hidden.shape
    normed = torch.empty_like(hidden)
    block = next_power_of_2(size)
    elementwise_kernels.add_norm_kernel[(tokens,)](
        hidden,
        residual,
        weight,
        normed,
        residual,
        epsilon,
        size,
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        num_warps=_norm_warps(block),
    )
    return normed, hidden if residual is None else residual


def gate(gate_up: Tensor, activation: str, limit: float | None) -> Tensor:
    """A tensor of its own, [tokens, n]."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    gated = gate_up.new_empty(tokens, size)
    elementwise_kernels.gate_kernel[(tokens, cdiv(size, BLOCK))](
        gate_up,
        gated,
        0.0 if limit is None else limit,
        size,
        ACTIVATION=activation,
        HAS_LIMIT=limit is not None,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return gated


def embed(token_ids: Tensor, table: Tensor, scale: float) -> Tensor:
    """Rows of the plain table [vocab, hidden]; `token_ids` of any integer dtype."""
    tokens, size = len(token_ids), table.shape[1]
    rows = table.new_empty(tokens, size)
    rounded = torch.tensor(scale, dtype=table.dtype).item()
    elementwise_kernels.embed_kernel[(tokens, cdiv(size, BLOCK))](
        token_ids, table, rows, rounded, size, BLOCK=BLOCK, num_warps=WARPS
    )
    return rows


def capped_logits(values: Tensor, soft_cap: float) -> Tensor:
    """[sampled, vocab] float32."""
    sampled, size = values.shape
    logits = values.new_empty(sampled, size, dtype=torch.float32)
    elementwise_kernels.capped_logits_kernel[(sampled, cdiv(size, BLOCK))](
        values, logits, soft_cap, size, BLOCK=BLOCK, num_warps=WARPS
    )
    return logits


def add_gated(outputs: Tensor, scores: Tensor, values: Tensor) -> Tensor:
    """The sum lies where `outputs` was."""
    tokens, size = outputs.shape
    elementwise_kernels.add_gated_kernel[(tokens, cdiv(size, BLOCK))](
        outputs, scores, values, outputs, size, BLOCK=BLOCK, num_warps=WARPS
    )
    return outputs


def _norm_warps(block: int) -> int:
    return min(max(block // COLUMNS_OF_WARP, 1), MOST_WARPS)


def builds(hidden_size: int, dtype: str, norm_dtype: str) -> Iterator[KernelBuild]:
    """What the functions above launch for a model; types by Triton's names."""
    block = next_power_of_2(hidden_size)
    values = dict.fromkeys(
        ("hidden", "residual", "normed", "total", "gate_up", "gated", "table", "rows", "values", "outputs", "sums"),
        f"*{dtype}",
    )
    known: dict[str, object] = {
        **values,
        "weight": f"*{norm_dtype}",
        "scores": f"*{dtype}",
        "token_ids": "*i32",
        "logits": "*fp32",
        **dict.fromkeys(("epsilon", "limit", "scale", "cap"), "fp32"),
        "size": "i32",
        "HAS_RESIDUAL": True,
        "HAS_LIMIT": False,
        "ACTIVATION": "silu",
        "BLOCK": BLOCK,
    }
    kernels = elementwise_kernels
    for name, kernel, changes, num_warps in (
        (f"add and norm, {hidden_size:,}", kernels.add_norm_kernel, {"BLOCK": block}, _norm_warps(block)),
        ("gate, silu", kernels.gate_kernel, {}, WARPS),
        ("gate, gelu", kernels.gate_kernel, {"ACTIVATION": "gelu"}, WARPS),
        ("gate, gelu_tanh", kernels.gate_kernel, {"ACTIVATION": "gelu_tanh"}, WARPS),
        ("gate, limited", kernels.gate_kernel, {"HAS_LIMIT": True}, WARPS),
        ("embed", kernels.embed_kernel, {}, WARPS),
        ("capped logits", kernels.capped_logits_kernel, {}, WARPS),
        ("add gated", kernels.add_gated_kernel, {}, WARPS),
    ):
        arguments = {parameter.name: (known | changes)[parameter.name] for parameter in kernel.params}
        yield KernelBuild(f"{name}, {dtype}", kernel, arguments, num_warps=num_warps, num_stages=3)
