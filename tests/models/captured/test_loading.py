"""How the memory of a GPU is measured and divided, on a device that keeps books instead of memory."""

from typing import Any

import pytest

from limelight.config import EngineConfig
from limelight.errors import OutOfMemory
from limelight.kernels.device import DeviceMemory
from limelight.models.captured.loading import Loaded, Ready, captured_executor
from limelight.models.captured.profiling import largest_steps
from limelight.models.checkpoint import open_checkpoint
from limelight.models.gpu_budget import GpuBudget
from limelight.models.precision import Precision
from limelight.models.source import NativeSource
from limelight.models.spec import ModelSpec
from limelight.step import Capacity
from tests.models.captured.queued_device import QueuedDevice, QueuedGraph
from tests.models.captured.reference_step_kernels import ReferenceStepKernels
from tests.models.tiny_models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
MIB = 2**20
WEIGHTS, BODY, GRAPH = 100 * MIB, 50 * MIB, 2 * MIB


class BookkeepingDevice(QueuedDevice):
    """Weights, a fixed amount for each body that runs, and one for each graph."""

    def __init__(self, total: int, others: int = 0) -> None:
        super().__init__()
        self.total, self.others = total, others
        self.num_graphs = 0
        self.peak = WEIGHTS
        self.reports: list[str] = []

    def run(self, work: Any) -> None:
        super().run(work)
        self.peak = WEIGHTS + BODY

    def capture(self, work: Any) -> QueuedGraph:
        self.num_graphs += 1
        device = self

        class Counted(QueuedGraph):
            def __del__(self) -> None:
                device.num_graphs -= 1

        return Counted(self, work, self.num_graphs)

    def reset_peak(self) -> None:
        self.peak = WEIGHTS

    def memory(self) -> DeviceMemory:
        own = WEIGHTS + self.num_graphs * GRAPH
        return DeviceMemory(total=self.total, free=self.total - self.others - own, own=own, peak=self.peak)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> NativeSource:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(vocab_size=258).save_pretrained(folder)
    return NativeSource(open_checkpoint(folder))


def ready(source: NativeSource, device: BookkeepingDevice, **settings: Any) -> Ready:
    config = EngineConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 64, "page_size": 8, **settings})
    kernels = ReferenceStepKernels("cpu")
    precision = Precision.uniform("float32")
    model = source.load(kernels, precision, 128, lambda what, fraction: None)
    assert isinstance(source.outline, ModelSpec)
    loaded = Loaded(model, source.outline, kernels, precision)
    budget = GpuBudget.of(device.memory(), config.gpu_memory_utilization)
    return captured_executor(
        config,
        loaded,
        device,
        budget,
        128,
        lambda what, fraction: device.reports.append(what),
        others="3 MiB: x (pid 1)",
    )


def test_the_pool_gets_what_weights_steps_and_graphs_leave(source: NativeSource) -> None:
    device = BookkeepingDevice(total=1000 * MIB, others=100 * MIB)
    executor, capacity, plan = ready(source, device)
    assert plan.free_bytes == int(0.9 * 900 * MIB)
    assert (plan.weights_bytes, plan.working_bytes) == (WEIGHTS, BODY)
    num_graphs = sum(len(kind.sizes) for kind in executor.kinds())
    assert plan.graphs_bytes == num_graphs * GRAPH
    assert device.num_graphs == num_graphs
    assert capacity.num_pages == 4 * 128 // 8  # no more than the seats can use
    assert plan.table().splitlines()[:2] == ["free memory  810.0 MiB", "others       3 MiB: x (pid 1)"]
    assert f"CUDA graphs  {num_graphs * 2}.0 MiB" in plan.table()
    assert device.reports[-1].startswith(f"captured {num_graphs} passes in ")


def test_without_graphs_none_is_captured_nor_counted(source: NativeSource) -> None:
    device = BookkeepingDevice(total=1000 * MIB)
    plan = ready(source, device, enable_cuda_graph=False).plan
    assert (plan.graphs_bytes, device.num_graphs) == (0, 0)


@pytest.mark.parametrize(
    ("total", "settings", "advice"),
    [
        (175, {}, r"set gpu_memory_utilization to at least 0\.\d\d$"),
        (500, {"kv_cache_bytes": 900 * MIB}, r"set kv_cache_bytes to at most [\d,]+$"),
        (130, {}, 'set quantize to "fp8"$'),
        (105, {}, 'set quantize to "int4"$'),
        (60, {}, "or choose a smaller model"),
    ],
)
def test_what_does_not_fit_is_told_with_the_smallest_change(
    source: NativeSource, total: int, settings: dict[str, int], advice: str
) -> None:
    with pytest.raises(OutOfMemory, match=advice) as caught:
        ready(source, BookkeepingDevice(total=total * MIB), **settings)
    for line in ("weights", "one step", "there is"):
        assert line in caught.value.message


def test_memory_that_ends_while_steps_are_measured_is_told_with_what_is_known(source: NativeSource) -> None:
    device = BookkeepingDevice(total=1000 * MIB)

    def used_up() -> None:
        raise OutOfMemory("the memory of cuda:0 is used up")

    device.before_run = used_up
    with pytest.raises(OutOfMemory, match=r"cuda:0 is used up: a step .*lower max_num_batched_tokens \(64\)$"):
        ready(source, device)


@pytest.mark.parametrize(
    ("budget", "num_seats", "length", "guesses"), [(64, 4, 128, 3), (8, 8, 100, 0), (512, 2, 9, 5)]
)
def test_the_largest_steps_are_as_large_as_a_step_can_be(
    budget: int, num_seats: int, length: int, guesses: int
) -> None:
    capacity = Capacity(
        num_pages=1,
        page_size=8,
        num_seats=num_seats,
        max_num_batched_tokens=budget,
        max_model_len=length,
        vocab_size=10,
    )
    prompt, decode, end = largest_steps(capacity, guesses)
    assert sum(chunk.num_tokens for chunk in prompt.chunks) == min(budget, num_seats * (length - 1))
    assert len(decode.chunks) == num_seats
    for chunk in (*prompt.chunks, *decode.chunks):
        assert chunk.start + chunk.num_tokens < length
        assert len(chunk.new_pages) * 8 >= chunk.start + chunk.num_tokens
    sampled = sum(chunk.num_drafts + 1 for chunk in decode.chunks)
    assert sampled == num_seats * min(guesses + 1, budget // num_seats, length - 1)
    assert len(end.released) == num_seats


def test_others_take_their_part_before_the_share() -> None:
    budget = GpuBudget.of(DeviceMemory(total=1000, free=500, own=100, peak=100), 0.5)
    assert (budget.others, budget.ours) == (400, 300)
