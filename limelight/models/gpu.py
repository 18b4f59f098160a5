"""Whether asking torch for a GPU is worth the seconds that its import takes."""

import ctypes
import sys
from pathlib import Path

DRIVER = "libcuda.so.1"
"""NVIDIA's driver, without which torch finds no GPU of theirs."""
AMD_DEVICE = Path("/dev/kfd")
"""What torch finds GPUs of AMD by."""


def may_have_gpu() -> bool:
    """Whether torch could find a GPU here: certainly not where no driver of one is."""
    if sys.platform != "linux" or AMD_DEVICE.exists():
        return True
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True
