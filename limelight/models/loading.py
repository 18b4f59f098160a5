"""From an `EngineConfig` to a `LoadedModel`: files, device, weights, memory plan, KV pool, warm-up. Blocking."""

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from limelight.config import EngineConfig
from limelight.errors import ConfigError, OutOfMemory
from limelight.kernels.cpu.features import usable_cores
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.loading import load_library
from limelight.kernels.cpu.step_buffers import StepLimits
from limelight.kernels.device import DeviceMemory
from limelight.kernels.interface import Kernels
from limelight.kernels.select import select_kernels
from limelight.kernels.step_kernels import has_passes
from limelight.models.decoder import Decoder
from limelight.models.device_choice import choose_device
from limelight.models.free_memory import free_memory_bytes
from limelight.models.gguf.vocabulary import vocabulary_from_gguf
from limelight.models.gpu_budget import GpuBudget
from limelight.models.hub import DEFAULT_SAMPLING, model_name, resolve
from limelight.models.kv_cache import allocate_kv_cache, kv_layout
from limelight.models.loaded_model import LoadedModel
from limelight.models.lora.adapter_table import AdapterTable
from limelight.models.memory_plan import (
    CPU_KV_LIMIT_BYTES,
    GPU_KV_SHARE,
    KV_SHARE,
    UNMEASURED_GPU_KV_SHARE,
    MemoryPlan,
    plan_memory,
)
from limelight.models.pooling import embedding_settings
from limelight.models.precision import Precision, choose_precision, precision_note
from limelight.models.recorded_step_executor import RecordedStepExecutor, most_sampled, step_limits
from limelight.models.source import AdaptableModel, Source, open_source
from limelight.models.spec import ModelSpec
from limelight.models.surroundings import files_digest
from limelight.models.text.answer_format import find_answer_format
from limelight.models.text.chat_format import JinjaChatFormat, chat_format_from_gguf, load_chat_format
from limelight.models.text.vocabulary import TokenizersVocabulary, load_vocabulary
from limelight.models.wording import as_size
from limelight.progress import Note, Report
from limelight.replay.bundle import ModelIdentity
from limelight.step import Capacity, Chunk, SeatSampling, SeatTaken, Step, StepExecutor


def load_model(config: EngineConfig, report: Report) -> LoadedModel:
    """Load the model that `config` names, ready for its first step.

    Raises:
        ConfigError: a setting that this machine or model cannot honour.
        ModelError: the model cannot be found, read, understood or fitted into memory.
    """
    device = choose_device(config.device, report)
    path = resolve(config.model, config.revision, report)
    source = open_source(path, config.model_impl)
    outline = source.outline
    kernels = select_kernels(
        config, device, native=source.is_native, find=lambda variant: load_library(variant, report)
    )
    precision = choose_precision(config, outline.dtype, kernels)
    plan = divide_memory(config, source, kernels, precision)
    for note in (*outline.notes, precision_note(config.dtype, precision, outline.dtype)):
        report(Note(note), None)

    with ThreadPoolExecutor(1, thread_name_prefix="limelight-load") as beside:
        text = beside.submit(_text_side, path, source.gguf_metadata)
        with _memory_of_device(config, plan):
            model = source.load(kernels, precision, plan.max_model_len, report)
        vocabulary, chat_format = text.result()

    adapters = AdapterTable(
        model.adaptable, precision.values, kernels.device, config.max_lora_rank, partial(_free_bytes, kernels)
    )
    ready = _prepare(config, source, kernels, precision, model, plan, adapters, report)
    report("warming up", None)
    try:
        warm_up(ready.executor, ready.capacity)
    except MemoryError as error:
        raise _no_memory(error) from error
    return LoadedModel(
        name=model_name(config.model),
        vocabulary=vocabulary,
        chat_format=chat_format,
        executor=ready.executor,
        capacity=ready.capacity,
        eos_token_ids=outline.eos_token_ids | vocabulary.eos_token_ids,
        defaults=DEFAULT_SAMPLING if config.model is None else source.sampling_defaults,
        memory_plan=ready.plan.table(),
        answer_format=find_answer_format(config, chat_format.sources, chat_format.variables, vocabulary),
        adapters=adapters if model.adaptable else None,
        embedding=embedding_settings(path, model.hidden_size),
        unreadable=model.unreadable,
        overlaps_steps=kernels.device != "cpu",
        identify=partial(_identity, model_name(config.model), path, kernels, precision),
    )


def _identity(name: str, path: Path, kernels: Kernels, precision: Precision) -> ModelIdentity:
    """What runs, for replay bundles."""
    variant = f"/{kernels.library.variant}" if isinstance(kernels, CpuKernels) else ""
    return ModelIdentity(
        name=name,
        digest=files_digest(path),
        kernels=f"{type(kernels).__name__}{variant} on {kernels.device}",
        precision=msgspec.structs.asdict(precision),
    )


def warm_up(executor: StepExecutor, capacity: Capacity) -> None:
    """A prefill and a decode step like any other, so that what is set up at first calls is behind us.

    The seat is released and the page is free again: a sequence writes a slot before it reads it.
    """
    taken = SeatTaken(seat=0, sampling=SeatSampling(temperature=1.0), num_prompt_tokens=1)
    length = min(capacity.page_size, capacity.max_model_len, capacity.max_num_batched_tokens + 1) - 1
    prefill = Chunk(seat=0, start=0, num_tokens=length, token_ids=(0,) * length, new_pages=(0,), sample=True)
    decode = Chunk(seat=0, start=length, num_tokens=1, token_ids=None, sample=True)
    executor.submit(Step(number=0, chunks=(prefill,), taken=(taken,)))()
    executor.submit(Step(number=0, chunks=(decode,)))()
    executor.submit(Step(number=0, chunks=(), released=(0,)))()


def divide_memory(config: EngineConfig, source: Source, kernels: Kernels, precision: Precision) -> MemoryPlan:
    """Divide the memory that is free now, before anything is loaded.

    Raises:
        ConfigError: `max_model_len` is beyond the model's positions.
        OutOfMemory: the weights, or what the settings ask for, do not fit.
    """
    outline = source.outline
    if config.max_model_len is not None and config.max_model_len > outline.longest_context:
        raise ConfigError(
            f"max_model_len is {config.max_model_len:,}, but the model's positions end at {outline.longest_context:,}; "
            f"use at most {outline.longest_context:,}"
        )
    on_cpu = kernels.device == "cpu"
    num_tokens, num_seats = config.tokens_per_step(kernels.device), config.num_seats(kernels.device)
    limits = StepLimits(
        num_tokens=num_tokens,
        num_seats=num_seats,
        num_sampled=most_sampled(num_tokens, num_seats, config.num_speculative_tokens),
        max_pages=-(-(config.max_model_len or outline.max_position_embeddings) // config.page_size),
        page_size=config.page_size,
    )
    return plan_memory(
        weights_bytes=source.weights_bytes(kernels, precision),
        page_bytes=kernels.page_bytes(kv_layout(outline, 1, config.page_size, precision.kv)),
        pages_per_run=kernels.pages_per_run,
        page_size=config.page_size,
        context_length=outline.max_position_embeddings,
        max_model_len=config.max_model_len,
        kv_cache_bytes=config.kv_cache_bytes,
        free_bytes=_free_bytes(kernels) if on_cpu else _gpu_bytes(config, kernels.device),
        max_num_seqs=num_seats,
        working_bytes=source.working_bytes(kernels, precision, limits, config.max_lora_rank),
        kv_limit_bytes=CPU_KV_LIMIT_BYTES if on_cpu else None,
        kv_share=KV_SHARE if on_cpu else GPU_KV_SHARE if has_passes(kernels) else UNMEASURED_GPU_KV_SHARE,
    )


class _Ready(NamedTuple):
    executor: StepExecutor
    capacity: Capacity
    plan: MemoryPlan


def _prepare(
    config: EngineConfig,
    source: Source,
    kernels: Kernels,
    precision: Precision,
    model: AdaptableModel,
    plan: MemoryPlan,
    adapters: AdapterTable,
    report: Report,
) -> _Ready:
    """The pool and what runs steps over it."""
    outline = source.outline
    if has_passes(kernels):
        # These import torch.
        from limelight.models.captured.loading import Loaded, executor_on_gpu

        assert isinstance(model, Decoder), "layers of our own, which come in two halves"
        assert isinstance(outline, ModelSpec), "the same"
        loaded = Loaded(model, outline, kernels, precision)
        return _Ready(*executor_on_gpu(config, loaded, plan.max_model_len, report, adapters.weights))
    capacity = Capacity(
        num_pages=plan.num_pages,
        page_size=plan.page_size,
        num_seats=config.num_seats(kernels.device),
        max_num_batched_tokens=config.tokens_per_step(kernels.device),
        max_model_len=plan.max_model_len,
        vocab_size=outline.vocab_size,
    )
    try:
        kv = allocate_kv_cache(kernels, kv_layout(outline, plan.num_pages, plan.page_size, precision.kv))
        if isinstance(kernels, CpuKernels):
            executor: StepExecutor = RecordedStepExecutor(
                model,
                kernels,
                kv,
                vocab_size=capacity.vocab_size,
                limits=step_limits(capacity, config.num_speculative_tokens),
                num_threads=config.num_threads or usable_cores(),
                adapters=adapters.weights,
                max_adapters=config.max_loras,
                max_adapter_rank=config.max_lora_rank,
            )
        else:
            from limelight.models.step_executor import TorchStepExecutor  # imports torch

            executor = TorchStepExecutor(model, kernels, kv, capacity, adapters.weights)
    except MemoryError as error:
        raise _no_memory(error) from error
    return _Ready(executor, capacity, plan)


@contextlib.contextmanager
def _memory_of_device(config: EngineConfig, plan: MemoryPlan) -> Iterator[None]:
    """Turn torch's word for a GPU without memory, which is not imported for that, into ours."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        smaller = "" if config.quantize in ("fp8", "int4") else 'set quantize to "fp8" or "int4", or '
        raise OutOfMemory(
            f"the GPU's memory is used up while the weights are loaded, which need {as_size(plan.weights_bytes)} "
            f"({error}); {smaller}free what others hold"
        ) from error


def _no_memory(error: MemoryError) -> OutOfMemory:
    return OutOfMemory(f"the system does not give what steps need: {error}")


def _free_bytes(kernels: Kernels) -> int | None:
    """Memory of the device that is free now, or None where that cannot be found out."""
    if kernels.device == "cpu":
        return free_memory_bytes()
    import torch

    return torch.cuda.mem_get_info(kernels.device)[0]


def _gpu_bytes(config: EngineConfig, device: str) -> int:
    """What Limelight may take of a GPU."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    memory = DeviceMemory(total=total, free=free, own=own, peak=own)
    return GpuBudget.of(memory, config.gpu_memory_utilization).ours


def _text_side(path: Path, gguf_metadata: Mapping[str, Any] | None) -> tuple[TokenizersVocabulary, JinjaChatFormat]:
    """Vocabulary and chat template, from the same files as the weights."""
    if gguf_metadata is not None:
        return vocabulary_from_gguf(gguf_metadata), chat_format_from_gguf(gguf_metadata)
    return load_vocabulary(path), load_chat_format(path)
