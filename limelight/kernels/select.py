"""The kernels for a device: chosen once, at start-up."""

from collections.abc import Callable

from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.loading import load_library
from limelight.kernels.interface import Kernels


def select_kernels(
    config: EngineConfig, device: str, *, native: bool, find: Callable[[str], Library | None] = load_library
) -> Kernels:
    """The fastest kernels that run on `device`, or those that the settings name.

    Args:
        device: as torch names it.
        find: gives the compiled kernels of a variant.
        native: the model has layers of our own. Others compute with torch, so the kernels have to, too.

    Raises:
        ConfigError: the settings ask for what these kernels do not do.
    """
    if device != "cpu" and native and config.cpu_kernels != "reference":
        return _on_gpu(config, device)
    runs_in_c = device == "cpu" and native and config.cpu_kernels != "reference"
    library = find(config.cpu_kernels) if runs_in_c else None
    if config.quantize == "fp8" and device == "cpu":
        raise ConfigError('quantize is "fp8", which is for GPUs; use "int8", or device "cuda"')
    if library is not None:
        return CpuKernels(library)
    if not native:
        reason = "this model runs with the layers of transformers"
    elif device != "cpu":
        reason = f"the device is {device}"
    elif config.cpu_kernels == "reference":
        reason = 'cpu_kernels is "reference"'
    else:
        reason = "they can neither be found nor compiled here"
    for field, needs in _only_in_c(config):
        raise ConfigError(f"{field} needs the kernels in C, but {reason}; {needs}")
    from limelight.kernels.reference import ReferenceKernels  # imports torch, which the kernels in C do without

    return ReferenceKernels(device)


def _on_gpu(config: EngineConfig, device: str) -> Kernels:
    if config.cpu_kernels != "auto":
        raise ConfigError(
            f'cpu_kernels is "{config.cpu_kernels}", but the device is {device}; use "auto", or "reference" for '
            "PyTorch's own operations"
        )
    if config.deterministic:
        raise ConfigError(
            f"deterministic is on, but the device is {device}, where a request's tokens depend on what runs beside it; "
            'leave it out, or use device "cpu"'
        )
    if config.num_threads is not None:
        raise ConfigError(f"num_threads is {config.num_threads}, but the device is {device}; leave it out")
    from limelight.kernels.triton.make import triton_kernels

    kernels = triton_kernels(device)
    if config.quantize == "int8" or (config.quantize == "fp8" and "FP8" not in kernels.stored_formats):
        also = '"fp8" or ' if "FP8" in kernels.stored_formats else ""
        raise ConfigError(
            f'quantize is "{config.quantize}", which {device} does not multiply with; use {also}"int4", or "auto"'
        )
    return kernels


def _only_in_c(config: EngineConfig) -> list[tuple[str, str]]:
    """The settings that the kernels in C alone can keep, and what to do without them."""
    asked = []
    if config.cpu_kernels not in ("auto", "reference"):
        asked.append((f'cpu_kernels "{config.cpu_kernels}"', 'use "auto"'))
    if config.deterministic:
        asked.append(("deterministic", "the same tokens at any load are kept by these alone: leave it out"))
    if config.quantize not in ("auto", "none"):
        asked.append((f'quantize "{config.quantize}"', 'use "auto" or "none"'))
    if config.num_threads is not None:
        asked.append(("num_threads", "set the environment variable OMP_NUM_THREADS for torch instead"))
    return asked
