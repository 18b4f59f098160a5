"""Passes captured for a few sizes each, and the smallest that fits a step. Which passes there are is said elsewhere.

A pass of some size runs steps of any smaller one: what they don't fill is padding that touches no page.
"""

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limelight.kernels.device import Device, Graph

SMALLEST_TOKENS = 64
DENSE_FROM = 8


def sequence_buckets(largest: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then each multiple of 8, up to `largest`: padding costs a decode least in tiles of matrices."""
    sizes = [1, 2, 4, *range(DENSE_FROM, largest, DENSE_FROM)]
    return (*(size for size in sizes if size < largest), largest)


def token_buckets(largest: int) -> tuple[int, ...]:
    """64, 128, 256 and so on, up to `largest`."""
    sizes, size = [], SMALLEST_TOKENS
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


@dataclass(frozen=True, slots=True)
class PassKind:
    """Passes that differ in size alone.

    Attributes:
        name: for progress.
        sizes: rising.
        make: size -> the work of that pass.
    """

    name: str
    sizes: tuple[int, ...]
    make: Callable[[int], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class CaptureCost:
    """What capturing took; `num_bytes` is what the device has less since."""

    num_graphs: int
    seconds: float
    num_bytes: int


class Buckets:
    """The passes of one kind, captured or not."""

    def __init__(self, kind: PassKind) -> None:
        self._kind = kind
        self._graphs: dict[int, Graph] = {}

    def fitting(self, size: int) -> int | None:
        """The smallest size that holds `size`, or None beyond the largest."""
        sizes = self._kind.sizes
        place = bisect.bisect_left(sizes, size)
        return sizes[place] if place < len(sizes) else None

    def graph(self, size: int) -> Graph | None:
        """The smallest captured pass that holds `size`; None if there is none."""
        fitting = self.fitting(size)
        return None if fitting is None else self._graphs.get(fitting)

    def put(self, size: int, graph: Graph) -> None:
        """Keep a captured pass."""
        self._graphs[size] = graph


def capture(
    device: Device,
    kinds: Sequence[PassKind],
    report: Callable[[float], None] = lambda _fraction: None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[Buckets], CaptureCost]:
    """Run and capture every pass, the largest first: smaller ones then find their memory in the shared pool.

    Args:
        report: told the fraction that is done.

    Returns:
        the passes of each kind, in the order of `kinds`, and what it took.

    Raises:
        OutOfMemory: the device has not enough for them.
    """
    device.trim()
    started, held_before = clock(), device.memory().own
    buckets = [Buckets(kind) for kind in kinds]
    passes = sorted(
        ((size, place) for place, kind in enumerate(kinds) for size in kind.sizes), key=lambda entry: -entry[0]
    )
    for done, (size, place) in enumerate(passes):
        report(done / len(passes))
        work = kinds[place].make(size)
        device.run(work)  # what is set up or compiled at a first call must not be captured
        device.synchronize()
        buckets[place].put(size, device.capture(work))
    report(1.0)
    device.trim()
    cost = CaptureCost(len(passes), clock() - started, max(0, device.memory().own - held_before))
    return buckets, cost
