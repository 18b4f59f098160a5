"""Dtypes by their names (`interface.DTYPE_BYTES`), for those who compute with torch."""

import torch

from limelight.kernels.interface import DTYPE_BYTES

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_BYTES}


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype: "float32" for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
