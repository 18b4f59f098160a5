"""How fast this machine reads memory, measured beside what is compared with it."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

READ_BYTES = 2**29
REPEATS = 5


def read_bandwidth(num_threads: int, num_bytes: int = READ_BYTES) -> float:
    """Bytes per second that `num_threads` read together out of memory: the best of five passes over `num_bytes`.

    Each thread looks for the greatest of its own int32 numbers, which NumPy does with vectors and without the
    interpreter lock, faster than memory can follow.
    """
    parts = [np.ones(num_bytes // num_threads // 4, np.int32) for _ in range(num_threads)]
    best = 0.0
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(REPEATS):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, sum(part.nbytes for part in parts) / (time.perf_counter() - started))
    return best
