"""What would compute here, and the model that would: answered by the checks of loading, short of the first tensor."""

from collections.abc import Sequence

import msgspec

from limelight.doctor.finding import Finding, NoAnswer, State, within
from limelight.doctor.gpu import GpuAnswer
from limelight.kernels.cpu import build
from limelight.kernels.cpu.cache import Cache, CacheUnusable, default_folder
from limelight.kernels.cpu.loading import Outlook, outlook

SECONDS = 60.0
"""For compilers, which take a second."""
INSTALL_COMPILER = (
    "install gcc with its headers (for example: apt-get install gcc libc6-dev), or a wheel with compiled kernels"
)


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """What computes models with layers of our own on the CPU.

    Attributes:
        variant: of the kernels in C; None: PyTorch's own operations.
        compiled: they are there; else the first start compiles them.
    """

    variant: str | None
    compiled: bool = False

    @property
    def title(self) -> str:
        """For people."""
        if self.variant is None:
            return "PyTorch's own operations, several times slower than kernels in C"
        when = "compiled already" if self.compiled else "compiled at the first start, in about 20 s of processor time"
        return f"in C, {self.variant}, {when}"


def compiler_title(command: Sequence[str] | None) -> str | None:
    """What the C compiler says that it is, in one line; None without one.

    Raises:
        CompilationFailed: it says nothing.
    """
    if command is None:
        return None
    return within(SECONDS, lambda: build.compiler_version(command)).partition("\n")[0]


def find_compiler() -> tuple[str | None, Finding | None]:
    """(what the compiler calls itself, what is wrong with it)."""
    try:
        return compiler_title(build.compiler()), None
    except (build.CompilationFailed, NoAnswer) as error:
        return None, Finding("compiler", State.NOTE, _first_line(error), "set CC to one that works")


def kernels_here(variant: str, gpu: GpuAnswer) -> tuple[Kernels, list[Finding]]:
    """What computes on the CPU, and what is to be said of it.

    Args:
        variant: as `EngineConfig.cpu_kernels`, not "reference".
        gpu: that a GPU is used makes the rest matter less.

    Raises:
        ConfigError: the processor does not run the variant.
    """
    try:
        found = within(SECONDS, lambda: outlook(variant))
    except NoAnswer as error:
        found = Outlook(None, problem=f"the compiler gave {error}")
    kernels = Kernels(variant=found.variant, compiled=found.compiled)
    if found.variant is None:
        advice = None if gpu.device != "cpu" else INSTALL_COMPILER
        return kernels, [Finding("kernels", State.NOTE, f"{kernels.title}: {_first_line(found.problem)}", advice)]
    findings = [Finding("kernels", State.OK, kernels.title)]
    if not found.compiled and (problem := _unkept()):
        text = f"{problem}, so each start compiles them"
        findings.append(Finding("kernels kept", State.NOTE, text, "set XDG_CACHE_HOME"))
    return kernels, findings


def gpu_finding(gpu: GpuAnswer) -> Finding:
    """Which GPU is taken, or why none."""
    if gpu.reason is None and gpu.support is not None:
        index = int(gpu.device.partition(":")[2] or 0)
        return Finding("GPU", State.OK, f"{gpu.device}, {gpu.support.gpus[index].title}")
    reason, _, advice = (gpu.reason or "").partition("; ")
    state = State.OK if gpu.support is None and not advice else State.NOTE
    return Finding("GPU", state, f"none is used: {reason}", advice or None)


def _unkept() -> str | None:
    try:
        Cache(default_folder())
    except CacheUnusable as error:
        return str(error)
    except RuntimeError:
        return "there is no home folder to keep compiled kernels in"
    return None


def _first_line(said: object) -> str:
    return str(said).strip().partition("\n")[0].rstrip(":.")
