"""From weights on a GPU to an executor of captured passes: steps are measured, then the pool gets what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch

from limelight.config import EngineConfig
from limelight.errors import OutOfMemory
from limelight.kernels.device import Device
from limelight.kernels.interface import DTYPE_BYTES
from limelight.kernels.step_kernels import StepKernels
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from limelight.models.captured.buffers import StepBuffers, captured_limits, make_buffers
from limelight.models.captured.executor import CapturedStepExecutor
from limelight.models.captured.passes import CapturableModel
from limelight.models.captured.profiling import StepMemory, measure_steps
from limelight.models.gpu_budget import GpuBudget, Needs, smallest_change
from limelight.models.gpu_tenants import others_note
from limelight.models.kv_cache import allocate_kv_cache, kv_layout
from limelight.models.memory_plan import GPU_KV_SHARE, MemoryPlan, plan_memory
from limelight.models.precision import Precision
from limelight.models.spec import ModelSpec
from limelight.models.wording import as_size
from limelight.progress import Note, Report
from limelight.step import Capacity

if TYPE_CHECKING:
    from limelight.models.lora.adapter_file import AdapterWeights


class Ready(NamedTuple):
    """An executor, what it can hold, and where the memory went."""

    executor: CapturedStepExecutor
    capacity: Capacity
    plan: MemoryPlan


class Loaded(NamedTuple):
    """A model whose weights are on the device."""

    model: CapturableModel
    outline: ModelSpec
    kernels: StepKernels
    precision: Precision

    @property
    def is_quantized(self) -> bool:
        """Its matrices were made smaller while loading."""
        return self.precision.weights is not None and self.precision.weights not in DTYPE_BYTES


def executor_on_gpu(
    config: EngineConfig,
    loaded: Loaded,
    max_model_len: int,
    report: Report,
    adapters: Mapping[int, AdapterWeights],
) -> Ready:
    """As `captured_executor`, on the GPU that the kernels launch on.

    Raises:
        OutOfMemory: with the plan and the smallest change that fits.
    """
    from limelight.kernels.cuda import CudaDevice

    index = int(loaded.kernels.device.partition(":")[2])
    device = CudaDevice(index)
    budget = GpuBudget.of(device.memory(), config.gpu_memory_utilization)
    others = others_note(budget.others, str(torch.cuda.get_device_properties(index).uuid))
    return captured_executor(config, loaded, device, budget, max_model_len, report, others=others, adapters=adapters)


def captured_executor(
    config: EngineConfig,
    loaded: Loaded,
    device: Device,
    budget: GpuBudget,
    max_model_len: int,
    report: Report,
    *,
    others: str = "",
    adapters: Mapping[int, AdapterWeights] | None = None,
) -> Ready:
    """Measure steps, size and allocate the pool, capture passes.

    Args:
        max_model_len: the longest context that the weights were loaded for; the pool may make it shorter.
        others: for people, see `MemoryPlan`.

    Raises:
        OutOfMemory: with the plan and the smallest change that fits.
    """
    outline, kernels, precision = loaded.outline, loaded.kernels, loaded.precision
    page_bytes = kernels.page_bytes(kv_layout(outline, 1, config.page_size, precision.kv))
    device.trim()
    weights_bytes = device.memory().own
    capacity = Capacity(
        num_pages=1,
        page_size=config.page_size,
        num_seats=config.num_seats(kernels.device),
        max_num_batched_tokens=config.tokens_per_step(kernels.device),
        max_model_len=max_model_len,
        vocab_size=outline.vocab_size,
    )
    needs = Needs(
        weights=weights_bytes,
        working=0,
        graphs=0,
        buffers=0,
        kv=page_bytes * (-(-config.max_model_len // config.page_size) if config.max_model_len else 1),
        page_bytes=page_bytes,
        page_size=config.page_size,
        max_model_len=config.max_model_len,
        max_num_seqs=capacity.num_seats,
        max_num_batched_tokens=capacity.max_num_batched_tokens,
        kv_cache_bytes=config.kv_cache_bytes,
        quantized=loaded.is_quantized,
    )
    if config.kv_cache_bytes is not None:
        needs = msgspec.structs.replace(needs, kv=max(needs.kv, config.kv_cache_bytes))
    try:
        report("measuring the largest step", None)
        limits = captured_limits(capacity, config.num_speculative_tokens)
        buffers = make_buffers(
            capacity,
            limits,
            hidden_size=outline.hidden_size,
            dtype=TORCH_DTYPES[precision.values],
            device=kernels.device,
        )
        needs = msgspec.structs.replace(needs, buffers=max(device.memory().own - weights_bytes, 0))
        measured = _measured(config, loaded, device, capacity, buffers)
        needs = msgspec.structs.replace(needs, working=measured.working, graphs=measured.graphs)
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        raise OutOfMemory(f"{error}: {_told(needs, budget)}") from error
    if needs.total > budget.ours:
        raise OutOfMemory(_told(needs, budget))
    plan = plan_memory(
        weights_bytes=weights_bytes,
        page_bytes=page_bytes,
        pages_per_run=kernels.pages_per_run,
        page_size=config.page_size,
        context_length=max_model_len,
        max_model_len=config.max_model_len,
        kv_cache_bytes=config.kv_cache_bytes,
        free_bytes=budget.ours,
        max_num_seqs=capacity.num_seats,
        working_bytes=measured.working,
        graphs_bytes=measured.graphs,
        buffers_bytes=needs.buffers,
        kv_limit_bytes=None,
        kv_share=GPU_KV_SHARE,
        others=others,
    )
    capacity = msgspec.structs.replace(capacity, num_pages=plan.num_pages, max_model_len=plan.max_model_len)
    try:
        kv = allocate_kv_cache(kernels, kv_layout(outline, plan.num_pages, plan.page_size, precision.kv))
        executor = CapturedStepExecutor(loaded.model, kernels, kv, device, capacity, buffers, adapters)
        if config.enable_cuda_graph:
            cost = executor.capture(lambda fraction: report("capturing passes", fraction))
            taken = as_size(cost.num_bytes)
            report(Note(f"captured {cost.num_graphs} passes in {cost.seconds:.1f} s, {taken}"), None)
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        raise OutOfMemory(
            f"{error}: more is needed than was measured ({needs.told(budget)}); lower gpu_memory_utilization "
            f"({config.gpu_memory_utilization}), or close what else uses the GPU"
        ) from error
    return Ready(executor, capacity, plan)


def _measured(
    config: EngineConfig, loaded: Loaded, device: Device, capacity: Capacity, buffers: StepBuffers
) -> StepMemory:
    """Steps over a pool of one page, which is given back."""
    layout = kv_layout(loaded.outline, capacity.num_pages, config.page_size, loaded.precision.kv)
    pool = allocate_kv_cache(loaded.kernels, layout)
    executor = CapturedStepExecutor(loaded.model, loaded.kernels, pool, device, capacity, buffers)
    try:
        return measure_steps(
            executor, buffers, device, capacity, config.num_speculative_tokens, captured=config.enable_cuda_graph
        )
    finally:
        executor.close()
        del executor, pool
        device.trim()


def _told(needs: Needs, budget: GpuBudget) -> str:
    if needs.total > budget.ours:
        return f"the model does not fit ({needs.told(budget)}); {smallest_change(needs, budget)}"
    return (
        f"a step of the largest size needs more than is left ({needs.told(budget)}); "
        f"lower max_num_batched_tokens ({needs.max_num_batched_tokens:,})"
    )
