"""What this machine can run: the variants that its processor executes, and the cores that this process may use."""

import os
import re
from pathlib import Path

NEEDED_FLAGS = {
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "fma", "f16c"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "portable": frozenset[str](),
}
"""Flags of /proc/cpuinfo that each variant needs, the fastest variant first. Linux lists a flag only if it also saves
the registers that the flag's instructions use."""


def runnable_variants(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Variants that this processor runs, the fastest first; "portable" always does."""
    flags = processor_flags(cpuinfo)
    return [variant for variant, needed in NEEDED_FLAGS.items() if needed <= flags]


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the first processor of /proc/cpuinfo lists as its flags; empty where there are none, as on ARM."""
    try:
        found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(found[1].split()) if found else frozenset()


def usable_cores(system: Path = Path("/")) -> int:
    """Physical cores that this process may use: affinity, hyper-threads and the quotas of its control groups count.

    Args:
        system: root of the tree in which `proc` and `sys` are looked at.
    """
    allowed = os.sched_getaffinity(0)
    cores = {_siblings(system, thread) or frozenset({thread}) for thread in allowed}
    quota = _quota(system)
    return max(1, len(cores) if quota is None else min(len(cores), -int(-quota // 1)))


def _siblings(system: Path, thread: int) -> str:
    """The hyper-threads of the core that `thread` belongs to, as the kernel lists them; "" if it does not tell."""
    try:
        return (system / f"sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return ""


def _quota(system: Path) -> float | None:
    """Cores' worth of time that the control groups of this process leave it, or None without a limit."""
    try:
        groups = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    mounted = system / "sys/fs/cgroup"
    limits = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            limits += [_limit_of(folder) for folder in _upwards(mounted, path)]
        elif "cpu" in controllers.split(","):  # version 1
            roots = {mounted / "cpu", mounted / controllers}
            limits += [_limit_of_version_1(folder) for root in roots for folder in _upwards(root, path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _upwards(mounted: Path, path: str) -> list[Path]:
    """The folder of a group and those of all groups around it. In a container whose groups are not a namespace of
    their own, `path` is the host's and does not exist, and the container's group is what is mounted.
    """
    inner = mounted / path.lstrip("/")
    return [inner, *(folder for folder in inner.parents if folder.is_relative_to(mounted))]


def _limit_of(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _limit_of_version_1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
