"""Who else uses the memory of a GPU, as far as the driver's own tool tells: for a line for people, and no more."""

import os
import subprocess
from collections.abc import Callable, Sequence

from limelight.models.wording import as_size

TIMEOUT_SECONDS = 5.0
COMMAND = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits")
MOST_NAMED = 4

Run = Callable[[Sequence[str]], str]


def others_note(other_bytes: int, gpu_uuid: str | None, run: Run | None = None) -> str:
    """For people: what others hold of a GPU, this process's own part of the driver included, and who they are.

    Args:
        gpu_uuid: as the driver names it; None if unknown.
        run: runs a command and gives what it prints; it may fail in any way that a process can.
    """
    names = [] if gpu_uuid is None else tenants(gpu_uuid, run or _run)
    if not names:
        return as_size(other_bytes)
    surplus = len(names) - MOST_NAMED
    shown = ", ".join(names[:MOST_NAMED]) + (f" and {surplus} more" if surplus > 0 else "")
    return f"{as_size(other_bytes)}: {shown}"


def tenants(gpu_uuid: str, run: Run) -> list[str]:
    """Programs on this GPU beside this one, the largest first; none where the tool is missing, slow or says nothing."""
    try:
        printed = run(COMMAND)
    except (OSError, subprocess.SubprocessError):
        return []
    found: list[tuple[int, str]] = []
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < len(("uuid", "pid", "name", "memory")) or gpu_uuid not in cells[0]:
            continue
        pid, name, used = cells[1], ",".join(cells[2:-1]), cells[-1]
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        size = int(used) * 2**20 if used.isdigit() else 0
        shown = "".join(letter if letter.isprintable() else "?" for letter in name.rpartition("/")[2])[:40]
        found.append((size, f"{shown} (pid {pid})" + (f" {as_size(size)}" if size else "")))
    return [text for _, text in sorted(found, reverse=True)]


def _run(command: Sequence[str]) -> str:
    return subprocess.run(  # noqa: S603 (a fixed command)
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    ).stdout
