"""Times the packed int8 and float products by themselves, in the cache."""

import math
import time

import numpy as np

from limelight.bench.figures import WIDTH, Figures
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.linear import PackedLinear, linear, pack_linear
from limelight.kernels.cpu.packing import FORMATS
from limelight.kernels.cpu.recorder import Program, Recorder, RowCount, bound
from limelight.kernels.cpu.threads import ThreadPool
from limelight.kernels.interface import LinearSegment, StoredTensor
from limelight.models.gguf.blocks import FORMATS as STORED

SIZE = 1024
"""Inputs and outputs of the matrices: of 1 MiB at most where they are quantised, which stays in the cache."""
RATED_FORMATS = ("Q8_0", "Q4_1")
RATED_ROWS = 256
SWITCHED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 192)
SWITCHED_FORMATS = tuple(name for name in FORMATS if name != "F32")
"""Formats whose panels are unpacked for many rows."""
ALWAYS = 2**31 - 1


def product_rate(library: Library, num_threads: int, stored_format: str, seconds: float = 0.3) -> float:
    """Operations per second of the packed product at its best, for as long as `seconds`."""
    rows = RowCount(np.array([RATED_ROWS], np.int32), RATED_ROWS)
    program = _product(library, rows, _random_matrix(library, stored_format, SIZE))
    pool = ThreadPool(library, num_threads)
    try:
        best = math.inf
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            best = min(best, dict(program.profile(pool))["linear"])
    finally:
        pool.close()
    return 2 * RATED_ROWS * SIZE * SIZE / best


def switch_over(library: Library, stored_format: str, size: int = SIZE, repeats: int = 15) -> Figures | None:
    """Rows up to which one thread multiplies faster with panels as they are packed than with unpacked ones: what is
    fixed, and what is measured.

    Args:
        size: inputs and outputs of the matrix, a multiple of the format's block.
        repeats: of each product; the fastest counts.

    Returns:
        None if this variant multiplies in one way only.
    """
    packed = _random_matrix(library, stored_format, size)
    [part] = packed.parts
    if not part.rows_as_packed:
        return None
    rows = RowCount(np.zeros(1, np.int32), max(SWITCHED_ROWS))
    ways = [
        _product(library, rows, packed._replace(parts=(part._replace(rows_as_packed=limit),))) for limit in (ALWAYS, 0)
    ]
    best = np.full((len(ways), len(SWITCHED_ROWS)), math.inf)
    for column, count in enumerate(SWITCHED_ROWS):
        rows.counter[0] = count
        for _ in range(repeats):
            for way, program in enumerate(ways):  # in turn: what slows the machine down slows both
                best[way, column] = min(best[way, column], dict(program.profile())["linear"])
    as_packed, unpacked = best.tolist()
    return {
        "format": stored_format,
        "fixed": part.rows_as_packed,
        "measured": best_switch_over(as_packed, unpacked),
        "as_packed_us": {count: seconds * 1e6 for count, seconds in zip(SWITCHED_ROWS, as_packed, strict=True)},
        "unpacked_us": {count: seconds * 1e6 for count, seconds in zip(SWITCHED_ROWS, unpacked, strict=True)},
    }


def best_switch_over(as_packed: list[float], unpacked: list[float]) -> int:
    """The one of `SWITCHED_ROWS` (or 0) up to which panels should be multiplied as packed, for the least product of all
    times, given the seconds of both ways for each.
    """
    gains = np.log(np.array(unpacked) / np.array(as_packed))
    return (0, *SWITCHED_ROWS)[int(np.argmax(np.concatenate([[0.0], np.cumsum(gains)])))]


def switch_over_lines(found: list[Figures]) -> list[str]:
    """As lines of a table."""
    if not found:
        return []
    head = f"{' rows multiplied as packed, at most ':-^{WIDTH}}"
    lines = [f"{one['format']:<26} {one['fixed']:>10} {one['measured']:>8}" for one in found]
    return [head, f"{'':<26} {'fixed':>10} {'measured':>8}", *lines]


def _random_matrix(library: Library, stored_format: str, size: int) -> PackedLinear:
    known = next(known for known in STORED.values() if known.name == stored_format)
    shape = (size, size // known.block_size * known.block_bytes)
    rows = np.random.default_rng(0).integers(30, 60, shape, np.uint8)  # of which any two are a small number as float16
    return pack_linear(library, [LinearSegment(weight=StoredTensor(stored_format, (size, size), rows))])


def _product(library: Library, rows: RowCount, packed: PackedLinear) -> Program:
    """A pass that multiplies `rows`, as many as their counter says when it runs."""
    recorder = Recorder(library)
    shape = (rows.largest, packed.num_inputs)
    inputs = bound(rows, np.random.default_rng(0).standard_normal(shape, np.float32))
    recorder.keep(linear(recorder, inputs, packed))
    return recorder.finish()[0]
