"""What numbers a model is kept and computed in, from the settings, the checkpoint and the kernels."""

import msgspec

from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.interface import Kernels

QUANTIZED = {"int8": "Q8_0", "int4": "Q4_1"}
"""Settings of `quantize` -> the format of the blocks, with the kernels in C."""
QUANTIZED_ON_GPU = {"fp8": "FP8", "int4": "INT4_64"}
"""The same with Triton's kernels."""
TABLE_FORMAT = "Q8_0"
"""Of embedding and head where the rest is quantised, with the kernels in C: each row is a whole token."""
FP8_KV = "float8_e4m3fn"


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. Dtypes are those of `DTYPE_BYTES`, that of `kv` those of `KV_DTYPE_BYTES`.

    Attributes:
        values: dtype of what is computed, and of parameters that are no matrices.
        kv: dtype of the KV pool.
        weights: what matrices are kept in: a dtype, a format that they are quantised to, or None: as they are stored,
            where the kernels take that. Matrices that are stored in fewer bits are left as they are.
        tables: format of embedding and head where the other matrices are quantised.
        plain: dtype of all matrices that are in no blocks, and of embedding and experts always; None: as stored.
    """

    values: str
    kv: str
    weights: str | None
    tables: str = TABLE_FORMAT
    plain: str | None = None

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
        return Precision(values="float32", kv=_kv_dtype(config, "bfloat16", kernels), weights=_kept_weights(config))
    if kernels.stored_formats:
        return _on_gpu(config, stored, kernels)
    computed = choose_dtype(config.dtype, stored, kernels.device)
    return Precision(values=computed, kv=_kv_dtype(config, computed, kernels), weights=computed)


def _on_gpu(config: EngineConfig, stored: str, kernels: Kernels) -> Precision:
    """With Triton's kernels, which compute in 16 bits, and with quantised weights in bfloat16."""
    computed = choose_dtype(config.dtype, stored, kernels.device)
    if computed == "float32":
        if config.dtype == "float32":
            raise ConfigError(
                'dtype is "float32", and the kernels for GPUs compute in 16 bits; use "bfloat16" or "float16", or '
                'cpu_kernels "reference" for PyTorch\'s own operations'
            )
        computed = "bfloat16"
    if config.quantize == "none":
        return Precision(values=computed, kv=_kv_dtype(config, computed, kernels), weights=computed)
    if config.quantize in QUANTIZED_ON_GPU and computed != "bfloat16":
        if config.dtype != "auto":
            raise ConfigError(
                f'quantize is "{config.quantize}" and dtype "{config.dtype}", but a GPU multiplies with such weights '
                'in bfloat16; use dtype "bfloat16" or quantize "none"'
            )
        computed = "bfloat16"
    if computed != "bfloat16":
        # Quantised weights of the checkpoint are expanded, for the same reason.
        return Precision(values=computed, kv=_kv_dtype(config, computed, kernels), weights=computed)
    return Precision(
        values=computed,
        kv=_kv_dtype(config, computed, kernels),
        weights=QUANTIZED_ON_GPU.get(config.quantize),
        plain=computed,
    )


def _kv_dtype(config: EngineConfig, default: str, kernels: Kernels) -> str:
    """What keys and values are kept in.

    Args:
        default: for kernels in C what "auto" means, for others what they compute in.
    """
    wanted = config.kv_cache_dtype
    in_c = isinstance(kernels, CpuKernels)
    if wanted == "auto":
        return config.dtype if in_c and config.dtype != "auto" else default
    if wanted == "fp8" and kernels.stored_formats and not in_c:
        return FP8_KV
    if wanted == default or (in_c and wanted != "fp8"):
        return wanted
    if in_c:
        raise ConfigError('kv_cache_dtype is "fp8", but the kernels in C keep 16 or 32 bits; use "bfloat16"')
    if not kernels.stored_formats:
        raise ConfigError(
            f'kv_cache_dtype is "{wanted}", but where PyTorch computes, keys and values are kept in what is computed '
            f'in, {default}; use "auto", or dtype "{default if wanted == "fp8" else wanted}"'
        )
    raise ConfigError(
        f'kv_cache_dtype is "{wanted}", but the GPU computes in {default}, and keeps keys and values in that or in '
        'fp8; use "auto" or "fp8"'
    )


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
        return "as stored" if precision.plain is None else f"in {precision.plain}, or FP8 where they are stored so"
    return f"in {precision.weights}"


def _kept_weights(config: EngineConfig) -> str | None:
    match config.quantize:
        case "auto":
            return None
        case "none":
            return "float32" if config.dtype == "auto" else config.dtype
        case bits:
            return QUANTIZED[bits]
