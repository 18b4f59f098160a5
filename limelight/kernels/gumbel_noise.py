"""Noise for drawing tokens that depends on nothing but its key: the same alone, in any batch, after a preemption."""

import torch
from torch import Tensor

UINT32 = 0xFFFFFFFF
LARGEST_UNIFORM = 1.0 - 2.0**-24
"""The largest float32 below one."""


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [rows, vocab] float32, always finite, from `seeds` and `positions` [rows] int64.

    The key is mixed by splitmix64's finaliser (Steele, Lea, Flood 2014), each token's word by two rounds of a 32-bit
    multiply-xorshift hash (`lowbias32`, Wellons 2018), the second keyed by the other half of the key.
    """
    key = _mix64(_mix64(seeds) + positions)
    first = _as_int32(key & UINT32).unsqueeze(1)
    second = _as_int32((key >> 32) & UINT32).unsqueeze(1)
    words = torch.arange(vocab_size, dtype=torch.int32, device=seeds.device) * _int32(0x9E3779B9)
    words = _mix32(words + first)
    words = _mix32(words.add_(second))
    # 31 bits, small values exact: -log1p(-uniform) then resolves the small exponentials that win the race.
    uniform = words.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).clamp_(max=LARGEST_UNIFORM)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _mix64(values: Tensor) -> Tensor:
    """Finaliser of splitmix64 on int64, which wraps; the shifts are logical."""
    values = values + _int64(0x9E3779B97F4A7C15)
    values = (values ^ _shift_right(values, 30)) * _int64(0xBF58476D1CE4E5B9)
    values = (values ^ _shift_right(values, 27)) * _int64(0x94D049BB133111EB)
    return values ^ _shift_right(values, 31)


def _mix32(words: Tensor) -> Tensor:
    """`lowbias32` on int32, in place; the shifts are logical."""
    words ^= (words >> 16).bitwise_and_(0xFFFF)
    words *= _int32(0x7FEB352D)
    words ^= (words >> 15).bitwise_and_(0x1FFFF)
    words *= _int32(0x846CA68B)
    words ^= (words >> 16).bitwise_and_(0xFFFF)
    return words


def _shift_right(values: Tensor, bits: int) -> Tensor:
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _as_int32(values: Tensor) -> Tensor:
    """int64 holding a word of 32 bits -> the int32 with those bits."""
    return (values - ((values & 0x80000000) << 1)).to(torch.int32)


def _int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _int64(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
