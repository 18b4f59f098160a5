"""The KV pool of a GPU, and what fills it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from limelight.kernels.interface import KVLayout
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from limelight.kernels.triton import kv_kernels
from limelight.kernels.triton.build import KernelBuild
from limelight.kernels.triton.float8_kernels import BY_BITS, IN_16_BITS, NATIVE
from limelight.kernels.triton.shapes import KernelShape
from limelight.kernels.triton.step_memory import RowBatch

PAGE_SIZES = (16, 32, 64)
FLOAT8_CAPABILITY = 89
"""Compute capability times ten from which processors convert numbers in 8 bits."""

ROTATE_HEADS = 8
"""Heads of a program. Two warps then read 16 bytes a thread, and a few rows already spread over many processors."""
ROTATE_WARPS = 2


@dataclass(frozen=True, slots=True)
class TritonKV:
    """The KV pool.

    Attributes:
        layers: per layer [pages, 2, kv_heads, page_size, head_dim], keys first; views of one piece of memory. Bytes
            (uint8) if the layout's dtype has 8 bits.
        scales: [layers, 2] float32: what is stored of keys and values in 8 bits is multiplied with these.
        float8: which of the ways of `float8_kernels.py` reads and writes them.
    """

    layout: KVLayout
    layers: tuple[Tensor, ...]
    scales: Tensor
    float8: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """Tables [max_positions, rotary_dim / 2] float32, and the rows whose positions are looked up there."""

    cos: Tensor
    sin: Tensor
    batch: RowBatch


def allocate_kv(layout: KVLayout, device: str, capability: int) -> TritonKV:
    """The pool, uninitialised, with scales of one.

    Args:
        capability: compute capability of the device, times ten.
    """
    in_8_bits = layout.dtype == "float8_e4m3fn"
    shape = (layout.num_layers, layout.num_pages, 2, layout.num_kv_heads, layout.page_size, layout.head_dim)
    pool = torch.empty(shape, dtype=torch.uint8 if in_8_bits else TORCH_DTYPES[layout.dtype], device=device)
    scales = torch.ones(layout.num_layers, 2, dtype=torch.float32, device=device)
    return TritonKV(layout, pool.unbind(), scales, float8_of(in_8_bits=in_8_bits, capability=capability))


def rotate_and_write(
    kv: TritonKV,
    layer: int,
    qkv: Tensor,
    rotation: Rotation,
    batch: RowBatch,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    epsilon: float,
) -> Tensor:
    """See `Kernels.rotate_and_write`; one launch. Rows without a slot give queries and write nothing."""
    layout = kv.layout
    tokens, width = qkv.shape
    num_heads = width // layout.head_dim - 2 * layout.num_kv_heads
    queries = qkv.new_empty(tokens, num_heads, layout.head_dim)
    constants = _rotate_constants(num_heads, layout.num_kv_heads, layout.head_dim, rotation.cos.shape[1])
    blocks = cdiv(num_heads, ROTATE_HEADS) + 2 * cdiv(layout.num_kv_heads, ROTATE_HEADS)
    kv_kernels.rotate_and_write_kernel[tokens, blocks](
        queries,
        kv.layers[layer],
        qkv,
        kv.scales[layer],
        batch.slots,
        batch.positions,
        rotation.cos,
        rotation.sin,
        q_norm,
        k_norm,
        epsilon,
        PAGE_SIZE=layout.page_size,
        FLOAT8=kv.float8,
        **constants,
        num_warps=ROTATE_WARPS,
        enable_fp_fusion=True,
    )
    return queries


def write(kv: TritonKV, layer: int, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
    """See `Kernels.write`; one launch. Rows without a slot write nothing."""
    layout = kv.layout
    kv_kernels.write_kernel[keys.shape[0], cdiv(layout.num_kv_heads, ROTATE_HEADS)](
        kv.layers[layer],
        keys.contiguous(),
        values.contiguous(),
        kv.scales[layer],
        batch.slots,
        NUM_KV_HEADS=layout.num_kv_heads,
        HEAD_DIM=layout.head_dim,
        PAGE_SIZE=layout.page_size,
        BLOCK_HEADS=ROTATE_HEADS,
        BLOCK_DIM=next_power_of_2(layout.head_dim),
        FLOAT8=kv.float8,
        num_warps=ROTATE_WARPS,
        enable_fp_fusion=True,
    )


def builds(shape: KernelShape, capability: int) -> Iterator[KernelBuild]:
    """What `rotate_and_write` and `write` launch for a model."""
    pool = "u8" if shape.kv_dtype == "fp8" else shape.kv_dtype
    norm = f"*{shape.norm_dtype}" if shape.qk_norm else None
    common: dict[str, object] = {
        "pool": f"*{pool}",
        "scales": "*fp32",
        "slots": "*i32",
        "PAGE_SIZE": shape.page_size,
        "FLOAT8": float8_of(in_8_bits=shape.kv_dtype == "fp8", capability=capability),
    }
    half = (shape.rotary_dim or shape.head_dim) // 2
    rotate = common | _rotate_constants(shape.num_heads, shape.num_kv_heads, shape.head_dim, half)
    rotate |= dict.fromkeys(("queries", "qkv"), f"*{shape.dtype}")
    rotate |= {"positions": "*i32", "cos": "*fp32", "sin": "*fp32", "epsilon": "fp32", "q_norm": norm, "k_norm": norm}
    kernels = kv_kernels.rotate_and_write_kernel, kv_kernels.write_kernel
    yield KernelBuild(f"rotate and write, {shape.name}", kernels[0], rotate, num_warps=ROTATE_WARPS, num_stages=3)
    names = ("NUM_KV_HEADS", "HEAD_DIM", "BLOCK_HEADS", "BLOCK_DIM")
    plain = common | {name: rotate[name] for name in names}
    plain |= {"keys": f"*{shape.dtype}", "values": f"*{shape.dtype}"}
    yield KernelBuild(f"write, {shape.name}", kernels[1], plain, num_warps=ROTATE_WARPS, num_stages=3)


def _rotate_constants(num_heads: int, num_kv_heads: int, head_dim: int, half: int) -> dict[str, int]:
    rest = head_dim - 2 * half
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "HALF": half,
        "BLOCK_HEADS": ROTATE_HEADS,
        "BLOCK_DIM": next_power_of_2(head_dim),
        "BLOCK_HALF": next_power_of_2(half),
        "BLOCK_REST": next_power_of_2(rest) if rest else 0,
    }


def float8_of(*, in_8_bits: bool, capability: int) -> int:
    """Which of the ways of `float8_kernels.py` reads and writes keys and values."""
    if not in_8_bits:
        return int(IN_16_BITS.value)
    return int(NATIVE.value if capability >= FLOAT8_CAPABILITY else BY_BITS.value)
