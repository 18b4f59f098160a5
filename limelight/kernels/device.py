"""What the runner asks of a GPU beside kernels: memory, order, graphs, and whether work is done.

All work goes to one stream, in the order in which it is given. Nothing here waits but `Event.wait`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from torch import Tensor


class Event(Protocol):
    """A place in the order of work."""

    def record(self) -> None:
        """Put it behind everything given so far. May be used again once it has been waited for."""
        ...

    def wait(self) -> None:
        """Block this thread, without spinning, until the device has come here. From any thread.

        Raises:
            EngineFailed: the device has failed for good.
        """
        ...


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Give all of it to the stream, with one call."""
        ...


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a device.

    Attributes:
        free: that anybody may still take.
        own: that this process holds, unused parts of its allocator included.
        peak: most that this process used at once since `reset_peak`.
    """

    total: int
    free: int
    own: int
    peak: int


class Device(Protocol):
    """One GPU, or what stands for it in a test.

    Attributes:
        name: as torch names it ("cuda:0").
        num_processors: streaming multiprocessors.
    """

    name: str
    num_processors: int

    def run(self, work: Callable[[], object]) -> None:
        """Give work to the stream: kernel launches, and copies that don't wait. What it reads on the host must stay as
        it is until an event behind it has been waited for.

        Raises:
            OutOfMemory: the device's memory is used up; nothing of the work counts.
            EngineFailed: the device has failed for good.
        """
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """Capture `work`, which has run before, instead of running it. All graphs share one pool of memory.

        Raises:
            OutOfMemory: as `run`.
        """
        ...

    def event(self) -> Event:
        """A new event."""
        ...

    def pinned(self, num_words: int) -> Tensor:
        """[num_words] int32 of host memory that copies don't wait for, zeroed."""
        ...

    def memory(self) -> DeviceMemory:
        """As it is now."""
        ...

    def reset_peak(self) -> None:
        """Measure `DeviceMemory.peak` from here on."""
        ...

    def trim(self) -> None:
        """Give memory that is not in use back to the device."""
        ...

    def synchronize(self) -> None:
        """Wait for all work given so far. Not between steps."""
        ...
