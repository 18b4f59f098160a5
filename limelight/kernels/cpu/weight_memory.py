"""Memory for weights, in pages of two megabytes where Linux gives them.

A step reads all weights one after the other. With pages of four kilobytes the processor looks up thousands of addresses
meanwhile: a step of one row took a quarter longer.
"""

import contextlib
import mmap
from threading import Lock

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 2 << 20
CHUNK_BYTES = 32 << 20
ALIGNMENT = 64


def aligned(num_bytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class WeightMemory:
    """Gives out pieces of large chunks. A chunk is given back to the system when nothing refers to its pieces."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._chunk: NDArray[np.uint8] = np.empty(0, np.uint8)

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """Memory, [num_bytes], that nothing has written to; it begins at a multiple of `ALIGNMENT`."""
        num_aligned = aligned(num_bytes)
        with self._lock:
            if num_aligned > len(self._chunk):
                self._chunk = _mapped(max(num_aligned, CHUNK_BYTES))
            piece, self._chunk = self._chunk[:num_bytes], self._chunk[num_aligned:]
        return piece


def _mapped(num_bytes: int) -> NDArray[np.uint8]:
    """Memory that is committed as it is written to, from the beginning of a large page on."""
    mapped = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # no Linux, or one without large pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    return memory[start : start + num_bytes]
