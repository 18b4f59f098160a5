"""A GPU through torch: its memory, one stream of work, events that let a thread sleep, and captured graphs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from limelight.errors import EngineFailed, OutOfMemory
from limelight.kernels.device import DeviceMemory


class CudaEvent:
    """See `Event`."""

    def __init__(self, device: CudaDevice, stream: torch.cuda.Stream) -> None:
        self._device = device
        self._stream = stream
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """Put it behind everything given to the stream so far."""
        with self._device.errors():
            self._event.record(self._stream)

    def wait(self) -> None:
        """Sleep until the device has come here."""
        with self._device.errors():
            self._event.synchronize()


class CudaGraph:
    """See `Graph`."""

    def __init__(self, device: CudaDevice, stream: torch.cuda.Stream, graph: torch.cuda.CUDAGraph) -> None:
        self._device = device
        self._stream = stream
        self._graph = graph

    def replay(self) -> None:
        """Give all of it to the stream."""
        with self._device.errors(), torch.cuda.stream(self._stream):
            self._graph.replay()


class CudaDevice:
    """See `Device`. Nothing global of torch is changed: stream and device are set for the length of a call.

    Args:
        index: of the GPU, among those that torch sees.
    """

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self.num_processors: int = torch.cuda.get_device_properties(index).multi_processor_count
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()

    def run(self, work: Callable[[], object]) -> None:
        """Give work to the stream."""
        with self.errors(), torch.cuda.stream(self._stream):
            work()

    def capture(self, work: Callable[[], object]) -> CudaGraph:
        """Capture `work` on the stream that it will be replayed on.

        torch's own context manager is not used: it collects garbage and empties caches before each of many captures.
        """
        if not self._graphs:
            # Torch takes no pool again that it holds memory of and no graph uses any more.
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with self.errors(), torch.cuda.stream(self._stream):
            # Other threads may use the GPU meanwhile, as the host application's may.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # what broke the capture is the better error
                    graph.capture_end()
                raise
            graph.capture_end()
        captured = CudaGraph(self, self._stream, graph)
        self._graphs.add(captured)
        return captured

    def event(self) -> CudaEvent:
        """A new event."""
        with torch.cuda.device(self._device):
            return CudaEvent(self, self._stream)

    def pinned(self, num_words: int) -> Tensor:
        """[num_words] int32 of page-locked memory."""
        with self.errors():
            return torch.zeros(num_words, dtype=torch.int32, pin_memory=True)

    def memory(self) -> DeviceMemory:
        """As it is now."""
        with self.errors():
            free, total = torch.cuda.mem_get_info(self._device)
            return DeviceMemory(
                total=total,
                free=free,
                own=torch.cuda.memory_reserved(self._device),
                peak=torch.cuda.max_memory_allocated(self._device),
            )

    def reset_peak(self) -> None:
        """Measure the peak from here on."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def trim(self) -> None:
        """Give torch's unused memory back."""
        with self.errors():
            torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for everything, other streams included: weights are loaded on torch's own."""
        with self.errors():
            torch.cuda.synchronize(self._device)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn torch's errors into ours.

        A fault in a kernel (an address out of bounds, memory that cannot be corrected) makes every later call fail, and
        may show at any of them: so a device is lost if it fails again when it is asked for nothing.
        """
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(f"the memory of {self.name} is used up: {error}") from error
        except RuntimeError as error:
            if "out of memory" in str(error):  # of the driver itself, while it makes a graph, say
                raise OutOfMemory(f"the memory of {self.name} is used up: {error}") from error
            if self._is_lost():
                raise EngineFailed(f"{self.name} has failed and needs a new process: {error}") from error
            raise

    def _is_lost(self) -> bool:
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:
            return True
        return False
