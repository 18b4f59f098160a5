"""The machine as far as Limelight depends on it: files that are read and metadata, nothing that takes time."""

import os
import platform
import sys
from pathlib import Path

import msgspec

from limelight import __version__
from limelight.doctor.packages import TorchBuild, installed_version, torch_build
from limelight.kernels.cpu.features import NEEDED_FLAGS, processor_flags, runnable_variants, usable_cores
from limelight.models.free_memory import free_memory_bytes, memory_limit_bytes, total_memory_bytes

VARIABLES = (
    "ALL_PROXY", "CC", "CUDA_VISIBLE_DEVICES", "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN",
    "HTTPS_PROXY", "HTTP_PROXY", "LIMELIGHT_ADMIN_KEY", "LIMELIGHT_API_KEY", "OMP_NUM_THREADS", "OMP_WAIT_POLICY",
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "SSL_CERT_FILE", "TRITON_INTERPRET", "XDG_CACHE_HOME",
)  # fmt: skip
"""What changes how Limelight runs. Told is which of them are set, never to what."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What there is. What cannot be found out is None.

    Attributes:
        system: of the operating system, without the machine's name.
        cores: that this process may use: affinity, hyper-threads and quotas count.
        processors: that the machine has, hyper-threads included.
        variants: of the kernels in C that the processor runs, the fastest first.
        lacking: flags of the processor that the next faster variant needs.
        memory_bytes: of the machine.
        memory_limit_bytes: the tightest limit of the process's control groups.
        free_memory_bytes: what it can really still get.
        torch: as it is installed; not imported.
        triton: its version.
        variables: names of the variables that are set and matter.
    """

    limelight: str
    python: str
    system: str
    cores: int
    processors: int | None
    variants: tuple[str, ...]
    lacking: tuple[str, ...]
    memory_bytes: int | None
    memory_limit_bytes: int | None
    free_memory_bytes: int | None
    torch: TorchBuild | None
    triton: str | None
    variables: tuple[str, ...]


def look_at_machine(environment: dict[str, str], system: Path = Path("/")) -> Machine:
    """What this machine offers.

    Args:
        environment: of this process.
        system: root of the tree in which `proc` and `sys` are looked at.
    """
    cpuinfo, proc, groups = system / "proc/cpuinfo", system / "proc", system / "sys/fs/cgroup"
    variants = runnable_variants(cpuinfo)
    faster = [variant for variant in NEEDED_FLAGS if variant not in variants]
    lacking = NEEDED_FLAGS[faster[-1]] - processor_flags(cpuinfo) if faster else frozenset()
    return Machine(
        limelight=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        system=_system(),
        cores=usable_cores(system) if sys.platform == "linux" else os.cpu_count() or 1,
        processors=os.cpu_count(),
        variants=tuple(variants) if sys.platform == "linux" else (),
        lacking=tuple(sorted(lacking)),
        memory_bytes=total_memory_bytes(proc),
        memory_limit_bytes=memory_limit_bytes(proc, groups),
        free_memory_bytes=free_memory_bytes(proc, groups),
        torch=torch_build(),
        triton=installed_version("triton") or installed_version("pytorch-triton"),
        variables=tuple(name for name in VARIABLES if environment.get(name) or environment.get(name.lower())),
    )


def _system() -> str:
    library, version = platform.libc_ver() if sys.platform == "linux" else ("", "")
    libc = f", {library} {version}" if library else ""
    return f"{platform.system()} {platform.release()} on {platform.machine()}{libc}"
