"""The GPU as Limelight would see it, asked in a process of its own: a driver may hang, or end who asks it."""

import subprocess
import sys

import msgspec

from limelight.errors import ConfigError
from limelight.models.device_choice import GpuSupport, usable_gpu
from limelight.models.gpu import may_have_gpu

SECONDS = 90.0
"""Importing torch and starting CUDA take seconds, on a slow disk tens of them."""

QUESTION = """
import sys, msgspec
from limelight.models.device_choice import gpu_support
sys.stdout.buffer.write(b"\\n" + msgspec.json.encode(gpu_support()))
"""


class GpuAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the question for a GPU.

    Attributes:
        device: what "auto" means here, as torch names it.
        support: what was found; None where nothing was asked, or no answer came.
        reason: why no GPU is used; None where one is.
    """

    device: str
    support: GpuSupport | None = None
    reason: str | None = None


def ask_for_gpu(
    name: str = "auto", command: tuple[str, ...] = (sys.executable, "-c", QUESTION), seconds: float = SECONDS
) -> GpuAnswer:
    """What a device ("auto", "cuda", "cuda:1") would be. Without a driver nothing is started, and torch not imported.

    Args:
        name: as `EngineConfig.device`.
        command: prints a `GpuSupport` as JSON, as the last line.
        seconds: for which it is waited for.
    """
    if not may_have_gpu():
        return GpuAnswer(device="cpu", reason="there is no driver of one")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)  # noqa: S603
        support = msgspec.json.decode(done.stdout.rpartition(b"\n")[2], type=GpuSupport)
    except subprocess.TimeoutExpired:
        return GpuAnswer(device="cpu", reason=f"torch and the driver gave no answer within {seconds:g} s")
    except (OSError, msgspec.DecodeError):
        return GpuAnswer(device="cpu", reason="the process that asked torch failed; see what `import torch` says")
    return answer_of(support, name)


def answer_of(support: GpuSupport, name: str = "auto") -> GpuAnswer:
    """What a device makes of what was found."""
    try:
        return GpuAnswer(device=usable_gpu("cuda" if name == "auto" else name, support), support=support)
    except ConfigError as error:
        reason = error.message.partition(", but ")[2].removesuffix(', or device "cpu"')
        return GpuAnswer(device="cpu", support=support, reason=reason)
