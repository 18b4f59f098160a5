"""What numbers a model is kept and computed in, from the settings, the checkpoint and the kernels."""

import msgspec
import torch

from limelight.config import EngineConfig
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.interface import Kernels

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

QUANTIZED = {"int8": "Q8_0", "int4": "Q4_1"}
"""Settings of `quantize` -> the format of the blocks."""


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """See the module.

    Attributes:
        values: dtype of what is computed, and of parameters that are no matrices.
        kv: dtype of the KV pool.
        weights: what matrices are kept in: a dtype, a format that they are quantised to, or None: as they are stored,
            where the kernels take that. Matrices that are stored in fewer bits are left as they are.
    """

    values: torch.dtype
    kv: torch.dtype
    weights: torch.dtype | str | None

    @staticmethod
    def uniform(dtype: torch.dtype) -> "Precision":
        """Everything in one dtype."""
        return Precision(values=dtype, kv=dtype, weights=dtype)

    @property
    def title(self) -> str:
        """What is computed in, in a word."""
        return name_of(self.values)


def choose_precision(config: EngineConfig, stored: str, kernels: Kernels) -> Precision:
    """What the settings mean with these kernels.

    Args:
        stored: what the checkpoint's weights are meant to be in.
    """
    if isinstance(kernels, CpuKernels):
        return Precision(
            values=torch.float32,
            kv=torch.bfloat16 if config.dtype == "auto" else DTYPES[config.dtype],
            weights=_kept_weights(config),
        )
    return Precision.uniform(choose_dtype(config.dtype, stored, kernels.device))


def choose_dtype(name: str, stored: str, device: torch.device) -> torch.dtype:
    """The dtype that a setting means to kernels that compute in it, and keep everything in it.

    "auto" is float32 on the CPU, and what the checkpoint holds on a GPU.
    """
    if name == "auto":
        name = "float32" if device.type == "cpu" else stored
    return DTYPES[name]


def precision_note(setting: str, precision: Precision, stored: str) -> str:
    """What is computed in and why, for people."""
    computed = precision.title
    if precision == Precision.uniform(precision.values):
        reason = (
            "as dtype says" if setting != "auto" else "the default on the CPU" if computed != stored else "as stored"
        )
        note = f"computing in {computed}, {reason}"
        return note + (f"; the weights are meant for {stored}" if computed != stored else "")
    return f"computing in {computed}; weights {weights_title(precision)}, keys and values in {name_of(precision.kv)}"


def weights_title(precision: Precision) -> str:
    """How matrices are kept, for people."""
    if precision.weights is None:
        return "as stored"
    return f"in {name_of(precision.weights) if isinstance(precision.weights, torch.dtype) else precision.weights}"


def name_of(dtype: torch.dtype) -> str:
    """Its name in settings: "float32" for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def _kept_weights(config: EngineConfig) -> torch.dtype | str | None:
    match config.quantize:
        case "auto":
            return None
        case "none":
            return DTYPES["float32" if config.dtype == "auto" else config.dtype]
        case bits:
            return QUANTIZED[bits]
