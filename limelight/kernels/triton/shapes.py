"""Shapes of models for which the kernels are compiled ahead of time: each brings something that the others lack."""

from __future__ import annotations

import msgspec


class KernelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model and its settings the kernels are compiled for.

    Attributes:
        dtype, kv_dtype: Triton's names of the types.
        rotary_dim: leading dimensions of a head that are rotated; all if None.
        norm_dtype: of the weights of the norms.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int = 16
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    norm_dtype: str = "bf16"
    rotary_dim: int | None = None
    qk_norm: bool = False
    window: bool = False
    soft_cap: bool = False
    sinks: bool = False


SHAPES = (
    KernelShape(name="Llama 3 8B", num_heads=32, num_kv_heads=8, head_dim=128),
    KernelShape(name="Llama 3 8B, fp16", num_heads=32, num_kv_heads=8, head_dim=128, dtype="fp16", kv_dtype="fp16"),
    KernelShape(name="Llama 3 8B, FP8 KV", num_heads=32, num_kv_heads=8, head_dim=128, page_size=32, kv_dtype="fp8"),
    KernelShape(name="Qwen3 0.6B", num_heads=16, num_kv_heads=8, head_dim=128, qk_norm=True, page_size=64),
    KernelShape(name="gpt-oss 20B", num_heads=64, num_kv_heads=8, head_dim=64, window=True, sinks=True),
    KernelShape(
        name="Gemma 2 9B", num_heads=16, num_kv_heads=8, head_dim=256, window=True, soft_cap=True, norm_dtype="fp32"
    ),
    KernelShape(name="Phi-3 mini", num_heads=32, num_kv_heads=32, head_dim=96, window=True),
    KernelShape(name="Phi-2", num_heads=32, num_kv_heads=32, head_dim=80, rotary_dim=32),
)
