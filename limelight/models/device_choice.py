"""Which device a setting means on this machine, and why a GPU that is there may not do."""

import re
from importlib import metadata

import msgspec

from limelight.errors import ConfigError
from limelight.models.gpu import may_have_gpu
from limelight.progress import Note, Report

LEAST_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16 in its matrix units and copies that go on beside the computing."""
LEAST_TRITON = (3, 6)
"""The oldest release that the kernels are tested with."""


class Gpu(msgspec.Struct, frozen=True):
    """A GPU as the driver tells of it; `capability` is what it can do, (9, 0) for Hopper."""

    name: str
    capability: tuple[int, int]

    @property
    def title(self) -> str:
        """For messages: "NVIDIA H200 (sm_90)"."""
        return f"{self.name} (sm_{self.capability[0]}{self.capability[1]})"


class GpuSupport(msgspec.Struct, frozen=True, kw_only=True):
    """What stands between Limelight and a GPU.

    Attributes:
        torch: its version.
        toolkit: the version of CUDA that torch was built with, None for a build without.
        driver: the version of CUDA that the driver is for, None without a driver.
        gpus: that the driver shows, in torch's order.
        built_for: what torch has code for: "sm_90", "compute_90".
        triton: its version, or None.
        failure: what the driver says instead of telling of its GPUs.
    """

    torch: str
    toolkit: str | None
    driver: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    built_for: tuple[str, ...] = ()
    triton: str | None = None
    failure: str | None = None


def choose_device(name: str, report: Report | None = None) -> str:
    """The device that a setting means on this machine, as torch names it. Without a GPU, torch is not asked.

    Args:
        name: as in `EngineConfig.device`.
        report: told why "auto" does not take a GPU that may be there.

    Raises:
        ConfigError: the GPU that was asked for is not there or does not do.
    """
    if name == "cpu" or (name == "auto" and not may_have_gpu()):
        return "cpu"
    support = gpu_support()
    if name != "auto":
        return usable_gpu(name, support)
    try:
        return usable_gpu("cuda", support)
    except ConfigError as error:
        if report is not None:
            report(Note(f"computing on the CPU: {error.message.partition(', but ')[2].partition('; ')[0]}"), None)
        return "cpu"


def gpu_support() -> GpuSupport:
    """What is found on this machine. Imports torch, and starts CUDA where there is a GPU."""
    import torch

    found = GpuSupport(torch=torch.__version__, toolkit=torch.version.cuda, triton=_triton_version())
    if found.toolkit is None:
        return found
    found = msgspec.structs.replace(found, driver=_driver_version())
    try:
        if not torch.cuda.is_available():
            return found
        gpus = tuple(
            Gpu(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
            for index in range(torch.cuda.device_count())
        )
        return msgspec.structs.replace(found, gpus=gpus, built_for=tuple(torch.cuda.get_arch_list()))
    except RuntimeError as error:
        return msgspec.structs.replace(found, failure=str(error).strip().partition("\n")[0])


def usable_gpu(name: str, support: GpuSupport) -> str:
    """The GPU that `name` ("cuda" or "cuda:1") means, as torch names it.

    Raises:
        ConfigError: in one line, what was found and what to do.
    """
    problem = _problem_of_machine(support)
    index = int(name.partition(":")[2] or 0)
    if problem is None and index >= len(support.gpus):
        shown = ", ".join(f"cuda:{number} {gpu.title}" for number, gpu in enumerate(support.gpus))
        problem = f"the driver shows {shown} alone; use one of these"
    if problem is None:
        problem = _problem_of_gpu(support.gpus[index], support)
    if problem is not None:
        raise ConfigError(f'device is "{name}", but {problem}, or device "cpu"')
    return f"cuda:{index}"


def _problem_of_machine(support: GpuSupport) -> str | None:
    torch = f"torch {support.torch}"
    if support.toolkit is None:
        return f"{torch} is a build without CUDA; install one with it"
    toolkit = _numbers(support.toolkit)
    if support.driver is None:
        return f"there is no NVIDIA driver that {torch} could use; install one for CUDA {support.toolkit}"
    if support.driver[0] < toolkit[0]:
        driver = f"{support.driver[0]}.{support.driver[1]}"
        return (
            f"the NVIDIA driver is for CUDA {driver} and {torch} for {support.toolkit}; update the driver, "
            f"or install torch for CUDA {support.driver[0]}"
        )
    if support.failure is not None:
        return f"the NVIDIA driver fails ({support.failure}); see what nvidia-smi says"
    if not support.gpus:
        return "the NVIDIA driver shows no GPU; see what nvidia-smi and CUDA_VISIBLE_DEVICES say"
    if support.triton is None:
        return "Triton is not installed, which compiles the kernels; install triton"
    if _numbers(support.triton) < LEAST_TRITON:
        least = ".".join(map(str, LEAST_TRITON))
        return f"Triton is {support.triton}, and the kernels need {least}; install a newer torch with its triton"
    return None


def _problem_of_gpu(gpu: Gpu, support: GpuSupport) -> str | None:
    if gpu.capability < LEAST_CAPABILITY:
        least = "sm_{}{}".format(*LEAST_CAPABILITY)
        return f"{gpu.title} is too old, the kernels need {least} (Ampere, 2020) or later; use a newer GPU"
    if support.built_for and not any(_runs_on(code, gpu.capability) for code in support.built_for):
        return f"torch {support.torch} has no code for {gpu.title}; install a newer torch"
    return None


def _runs_on(code: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on later processors of its own generation, PTX on all later ones."""
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", code)
    if match is None:
        return False
    made_for = (int(match[2]), int(match[3]))
    return made_for <= capability and (match[1] == "compute" or made_for[0] == capability[0])


def _driver_version() -> tuple[int, int] | None:
    """From the driver's own number: 13000 for 13.0."""
    import torch

    number: int = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()  # noqa: SLF001 (told nowhere else)
    return (number // 1000, number % 1000 // 10) if number else None


def _triton_version() -> str | None:
    """As installed; not imported."""
    for name in ("triton", "pytorch-triton"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (3, 6) of "3.6.0+git1"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
