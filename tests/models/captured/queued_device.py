"""A device that takes its time: work is kept in a queue and done when somebody waits for it, or by chance.

So a buffer that is written again too early gives wrong tokens, and whoever reads without waiting reads what was there
before. Every call is written down.
"""

import random
import threading
from collections.abc import Callable

import torch

from limelight.errors import EngineFailed, OutOfMemory
from limelight.kernels.device import DeviceMemory

Work = Callable[[], object]


class QueuedEvent:
    def __init__(self, device: "QueuedDevice", number: int) -> None:
        self._device = device
        self._place = 0
        self.number = number

    def record(self) -> None:
        self._device.check()
        self._device.calls.append(f"record {self.number}")
        self._place = self._device.num_given

    def wait(self) -> None:
        self._device.calls.append(f"wait {self.number}")
        self._device.work_up_to(self._place)
        self._device.check()


class QueuedGraph:
    def __init__(self, device: "QueuedDevice", work: Work, number: int) -> None:
        self._device = device
        self._work = work
        self.number = number

    def replay(self) -> None:
        self._device.check()
        self._device.calls.append(f"replay {self.number}")
        self._device.give(self._work)


class QueuedDevice:
    """See `Device`.

    Args:
        seed: of the chance by which some work is done at once; None: only what is waited for.

    Attributes:
        calls: in order.
        before_run: called with each uncaptured work; may raise.
    """

    name = "cpu"
    num_processors = 4

    def __init__(self, seed: int | None = None) -> None:
        self.calls: list[str] = []
        self.before_run: Callable[[], object] = lambda: None
        self.num_given = 0
        self.fault: str | None = None
        self.fault_in_work: str | None = None
        self._chance = None if seed is None else random.Random(seed)
        self._queue: list[Work] = []
        self._num_done = 0
        self._num_made = 0
        self._lock = threading.RLock()

    def run(self, work: Work) -> None:
        self.check()
        self.calls.append(f"run {getattr(getattr(work, 'func', work), '__name__', '?')}")
        self.before_run()
        self.give(work)

    def capture(self, work: Work) -> QueuedGraph:
        assert not self._queue, "nothing is in flight while a graph is captured"
        self._num_made += 1
        self.calls.append(f"capture {self._num_made}")
        return QueuedGraph(self, work, self._num_made)

    def event(self) -> QueuedEvent:
        self._num_made += 1
        return QueuedEvent(self, self._num_made)

    def pinned(self, num_words: int) -> torch.Tensor:
        return torch.zeros(num_words, dtype=torch.int32)

    def memory(self) -> DeviceMemory:
        return DeviceMemory(total=100, free=50, own=10, peak=10)

    def reset_peak(self) -> None:
        pass

    def trim(self) -> None:
        pass

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.work_up_to(self.num_given)
        self.check()

    # ---- for tests

    def give(self, work: Work) -> None:
        with self._lock:
            self._queue.append(work)
            self.num_given += 1
            if self._chance is not None and self._chance.random() < 0.3:
                self.work_up_to(self._num_done + self._chance.randint(1, len(self._queue)))

    def work_up_to(self, place: int) -> None:
        with self._lock:
            while self._num_done < place:
                self._num_done += 1
                work = self._queue.pop(0)
                if self.fault_in_work is not None and self.fault is None:
                    self.fault = self.fault_in_work
                if self.fault is None:
                    work()

    def check(self) -> None:
        if self.fault is not None:
            raise EngineFailed(self.fault)


def out_of_memory() -> None:
    raise OutOfMemory("the memory of the device is used up")
