"""What numbers a model is kept and computed in, from the settings, the checkpoint and the kernels."""

import msgspec

from limelight.config import EngineConfig
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.interface import Kernels

QUANTIZED = {"int8": "Q8_0", "int4": "Q4_1"}
"""Settings of `quantize` -> the format of the blocks."""


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. Dtypes are those of `DTYPE_BYTES`.

    Attributes:
        values: dtype of what is computed, and of parameters that are no matrices.
        kv: dtype of the KV pool.
        weights: what matrices are kept in: a dtype, a format that they are quantised to, or None: as they are stored,
            where the kernels take that. Matrices that are stored in fewer bits are left as they are.
    """

    values: str
    kv: str
    weights: str | None

    @staticmethod
    def uniform(dtype: str) -> "Precision":
        """Everything in one dtype."""
        return Precision(values=dtype, kv=dtype, weights=dtype)


def choose_precision(config: EngineConfig, stored: str, kernels: Kernels) -> Precision:
    """What the settings mean with these kernels.

    Args:
        stored: what the checkpoint's weights are meant to be in.
    """
    if isinstance(kernels, CpuKernels):
        return Precision(
            values="float32",
            kv="bfloat16" if config.dtype == "auto" else config.dtype,
            weights=_kept_weights(config),
        )
    return Precision.uniform(choose_dtype(config.dtype, stored, kernels.device))


def choose_dtype(name: str, stored: str, device: str) -> str:
    """The dtype that a setting means to kernels that compute in it, and keep everything in it.

    "auto" is float32 on the CPU, and what the checkpoint holds on a GPU.
    """
    if name == "auto":
        return "float32" if device == "cpu" else stored
    return name


def precision_note(setting: str, precision: Precision, stored: str) -> str:
    """What is computed in and why, for people."""
    computed = precision.values
    if precision == Precision.uniform(precision.values):
        reason = (
            "as dtype says" if setting != "auto" else "the default on the CPU" if computed != stored else "as stored"
        )
        note = f"computing in {computed}, {reason}"
        return note + (f"; the weights are meant for {stored}" if computed != stored else "")
    return f"computing in {computed}; weights {weights_title(precision)}, keys and values in {precision.kv}"


def weights_title(precision: Precision) -> str:
    """How matrices are kept, for people."""
    if precision.weights is None:
        return "as stored"
    return f"in {precision.weights}"


def _kept_weights(config: EngineConfig) -> str | None:
    match config.quantize:
        case "auto":
            return None
        case "none":
            return "float32" if config.dtype == "auto" else config.dtype
        case bits:
            return QUANTIZED[bits]
