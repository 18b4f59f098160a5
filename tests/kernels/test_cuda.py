"""What errors of torch become, and in which order a capture goes, over a torch whose GPU is made up."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from limelight.errors import EngineFailed, OutOfMemory
from limelight.kernels.cuda import CudaDevice

FAULT = "CUDA error: an illegal memory access was encountered"


class MadeUpGpu:
    """Stands for `torch.cuda`.

    Attributes:
        fault: what every call that reaches the GPU fails with.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fault: str | None = None
        self.num_pools = 0
        self.pools: list[int] = []
        self.CUDAGraph = lambda: SimpleNamespace(
            capture_begin=lambda pool, **_: (self.calls.append("begin"), self.pools.append(pool)),
            capture_end=lambda: self.calls.append("end"),
            replay=lambda: self.calls.append("replay"),
        )

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(multi_processor_count=132)

    def Stream(self, device: torch.device) -> str:  # noqa: N802
        return f"stream of {device}"

    def graph_pool_handle(self) -> int:
        self.num_pools += 1
        return self.num_pools

    @contextlib.contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        self.calls.append(f"enter {stream}")
        yield
        self.calls.append("leave")

    def synchronize(self, device: torch.device) -> None:
        if self.fault is not None:
            raise RuntimeError(self.fault)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> MadeUpGpu:
    gpu = MadeUpGpu()
    monkeypatch.setattr(torch, "cuda", gpu)
    return gpu


def raising(error: Exception) -> None:
    raise error


def test_work_runs_on_the_devices_own_stream(gpu: MadeUpGpu) -> None:
    device = CudaDevice(1)
    device.run(lambda: gpu.calls.append("work"))
    assert (device.name, device.num_processors) == ("cuda:1", 132)
    assert gpu.calls == ["enter stream of cuda:1", "work", "leave"]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("tried to allocate"), RuntimeError("CUDA error: out of memory")]
)
def test_a_lack_of_memory_is_ours(gpu: MadeUpGpu, error: Exception) -> None:
    with pytest.raises(OutOfMemory, match="cuda:0 is used up"):
        CudaDevice(0).run(lambda: raising(error))


def test_an_error_after_which_the_device_works_stays_what_it_is(gpu: MadeUpGpu) -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"):
        CudaDevice(0).run(lambda: raising(RuntimeError("shapes do not match")))


def test_an_error_after_which_nothing_works_ends_the_engine(gpu: MadeUpGpu) -> None:
    device = CudaDevice(0)
    gpu.fault = FAULT
    for call in (lambda: device.run(lambda: raising(RuntimeError(FAULT))), device.synchronize):
        with pytest.raises(EngineFailed, match="needs a new process: CUDA error: an illegal memory access"):
            call()


def test_a_graph_is_captured_and_replayed_on_the_stream(gpu: MadeUpGpu) -> None:
    device = CudaDevice(0)
    graph = device.capture(lambda: gpu.calls.append("work"))
    graph.replay()
    entering = "enter stream of cuda:0"
    assert gpu.calls == [entering, "begin", "work", "end", "leave", entering, "replay", "leave"]


def test_a_capture_that_fails_is_ended(gpu: MadeUpGpu) -> None:
    with pytest.raises(OutOfMemory):
        CudaDevice(0).capture(lambda: raising(torch.OutOfMemoryError("tried to allocate")))
    assert gpu.calls[-1] == "end"


def test_graphs_share_a_pool_until_none_of_them_is_left(gpu: MadeUpGpu) -> None:
    device = CudaDevice(0)
    graphs = [device.capture(lambda: None) for _ in range(3)]
    assert len(set(gpu.pools)) == 1
    graphs.clear()
    device.capture(lambda: None)
    assert gpu.pools[3] != gpu.pools[0]
