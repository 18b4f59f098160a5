"""How much memory this process can really still get: the machine's, or less where a container limits it.

Reads files only; paths are arguments, so that tests bring their own. Everything is in bytes.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

UNLIMITED = 2**60
"""Limits from here on mean none (cgroup v1 writes a number near 2**63)."""


def free_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that can be allocated without swapping or being killed; None where it cannot be found out.

    The least of `MemAvailable` and of what every control group from the process's own up to the root has left.
    """
    if not (proc / "meminfo").is_file():
        return _free_on_this_system()
    left = [_available(proc / "meminfo"), *(left for _, left in _limits_and_left(proc, cgroups))]
    return min((amount for amount in left if amount is not None), default=None)


def total_memory_bytes(proc: Path = Path("/proc")) -> int | None:
    """Memory of the machine, whatever limits this process; None where it cannot be found out."""
    kilobytes = _kilobytes(proc / "meminfo").get("MemTotal")
    if kilobytes is not None:
        return kilobytes * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return None


def memory_limit_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The tightest limit of the control groups that this process is in; None without one."""
    return min((limit for limit, _ in _limits_and_left(proc, cgroups)), default=None)


def _available(meminfo: Path) -> int | None:
    """`MemAvailable`; on kernels without it, free memory plus the page cache."""
    kilobytes = _kilobytes(meminfo)
    if "MemAvailable" in kilobytes:
        return kilobytes["MemAvailable"] * 1024
    if "MemFree" in kilobytes:
        return (kilobytes["MemFree"] + kilobytes.get("Cached", 0) + kilobytes.get("Buffers", 0)) * 1024
    return None


def _kilobytes(meminfo: Path) -> dict[str, int]:
    """What /proc/meminfo says, by its names."""
    kilobytes: dict[str, int] = {}
    for line in _read(meminfo).splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            kilobytes[name] = int(number[0])
    return kilobytes


def _limits_and_left(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, limit less usage) of each control group that limits memory, versions 1 and 2."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and controllers == "":
            yield from _left_upwards(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_upwards(cgroups / "memory", path, *names)


def _left_upwards(
    root: Path, path: str, limit_name: str, usage_name: str, cache_name: str
) -> Iterator[tuple[int, int]]:
    """From the group `path` up to `root`. A container may see its own group as the root, whatever `path` says."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(len(parts), -1, -1):
        folder = root.joinpath(*parts[:depth])
        limit = _number(folder / limit_name)
        usage = _number(folder / usage_name)
        if limit is None or usage is None or limit >= UNLIMITED:
            continue
        # Cached file pages count as used, but are given up before anything is killed.
        reclaimable = _statistic(folder / "memory.stat", cache_name)
        yield limit, max(limit - max(usage - reclaimable, 0), 0)


def _statistic(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file or it says "max"."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _free_on_this_system() -> int | None:
    """Systems without /proc, asked directly."""
    if sys.platform == "win32":
        return _free_on_windows()
    if sys.platform == "darwin":
        return _free_on_macos()
    return None


class _MemoryStatus(ctypes.Structure):
    """`MEMORYSTATUSEX` of the Windows API."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total_physical", ctypes.c_uint64),
        ("available_physical", ctypes.c_uint64),
        ("total_page_file", ctypes.c_uint64),
        ("available_page_file", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64),
        ("available_virtual", ctypes.c_uint64),
        ("available_extended_virtual", ctypes.c_uint64),
    ]


def _free_on_windows() -> int | None:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009
    return int(status.available_physical) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None


def _free_on_macos() -> int | None:
    """Half of the physical memory: macOS compresses and swaps early, and its free-page counts say little."""
    library = ctypes.CDLL("libSystem.dylib")
    total = ctypes.c_uint64(0)
    size = ctypes.c_size_t(ctypes.sizeof(total))
    failed = library.sysctlbyname(b"hw.memsize", ctypes.byref(total), ctypes.byref(size), None, 0)
    return None if failed else int(total.value) // 2
