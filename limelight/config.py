"""How an engine is set up: one small frozen struct, validated on construction, never edited."""

import math
import re
from collections.abc import Mapping
from typing import TypedDict

import msgspec

from limelight.errors import ConfigError
from limelight.parsing.answer_format import REASONING_FORMATS
from limelight.parsing.tool_calls.formats import TOOL_FORMATS

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,2})?")
MAX_STREAM_INTERVAL = 60.0
MAX_SPECULATIVE_TOKENS = 32
MAX_PROMPT_LOOKUP = 16
MAX_PIPELINE_DEPTH = 2
MAX_RECENT_REQUESTS = 10_000
DTYPES = ("auto", "float32", "bfloat16", "float16")
CPU_KERNELS = ("auto", "avx512", "avx2", "portable", "reference")
KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8")
QUANTIZATIONS = ("auto", "none", "int8", "int4", "fp8")
CPU_SEATS, GPU_SEATS = 64, 256
CPU_TOKENS_PER_STEP, GPU_TOKENS_PER_STEP = 512, 8192
MODEL_IMPLS = ("auto", "native", "transformers")
TOOL_CALL_PARSERS = ("auto", "none", *sorted(TOOL_FORMATS))
REASONING_PARSERS = ("auto", "none", *sorted(REASONING_FORMATS))


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine. Everything not set is derived from the model and the machine.

    Attributes:
        model: a folder, a `.gguf` file, a hub id (`org/name`), or None for the embedded default model.
        revision: branch, tag or commit of a hub id.
        served_model_name: the name in the API; default: the model's own.
        device: "auto" (a GPU where there is one that does), "cpu", "cuda" or "cuda:1".
        dtype: what to compute in: "float32", "bfloat16", "float16", or "auto": float32 on the CPU, the checkpoint's on
            a GPU. The kernels in C compute in float32 always; to them it is the dtype of keys and values, and "auto" is
            bfloat16.
        cpu_kernels: what computes on the CPU: "avx512", "avx2" or "portable" (kernels in C), "reference" (PyTorch's own
            operations), or "auto": the fastest that the processor runs, in C where models have layers of our own.
        num_threads: that compute on the CPU; default: the cores that this process may use.
        quantize: what matrices are kept in: "int8" or "int4" (8 or 4 bits with a scale for each 32 values, made while
            loading), "none" (expanded to `dtype`, float32 for "auto" on the CPU), or "auto": as they are stored. On a
            GPU "fp8" (8 bits with a scale for each output, sm_89 and later) and "int4"; "int8" on the CPU alone.
        deterministic: refuse to start where a request's tokens could depend on what else runs: load, batch, chunks of
            the prompt, cached prefixes, preemption. The kernels in C keep that always, and nothing else does.
        model_impl: whose layers run: "native" (Limelight's own), "transformers" (its modules over Limelight's pages;
            folders only), or "auto": native for the families that have them, else transformers.
        max_model_len: context length in tokens; default: the model's, shortened to what the KV pool can hold.
        max_num_seqs: sequences that run at once (seats); default: 64 on the CPU, 256 on a GPU.
        max_num_batched_tokens: token budget of one step; a longer prompt is prefilled in chunks; default: 512 on the
            CPU, 8,192 on a GPU.
        max_num_requests: live requests (running and waiting); one more is refused with 503.
        max_queued_tokens: prompt tokens that may wait for their first step, cached ones not counted; a request that
            would make them more is refused with 503, unless nothing waits. Default: no limit but `max_num_requests`.
        target_itl_ms: milliseconds between two tokens of a running answer: chunks of prompts are cut so that steps take
            no longer, as far as can be foretold. Default: none, chunks as large as `max_num_batched_tokens` allows.
        kv_cache_bytes: size of the KV pool; default: a share of the memory that is really free.
        kv_cache_dtype: what keys and values are kept in: "bfloat16", "float16", "fp8" (e4m3, on a GPU), or "auto": as
            `dtype` says.
        gpu_memory_utilization: share of a GPU's memory that Limelight may take, weights and steps included.
        page_size: tokens per KV page.
        enable_prefix_caching: share pages of equal prefixes between requests.
        adapters: LoRA adapters to load at the start: the name in the API -> a folder as peft writes it, or a hub id.
        max_loras: adapters that may be loaded at once.
        max_lora_rank: an adapter of a larger rank is refused.
        pipeline_depth: steps in flight, 1 or 2; 2 plans the next step while the device runs this one. Default: 2 on a
            GPU, else 1.
        enable_cuda_graph: on a GPU, capture passes at the start and replay them, which launches a step with two calls.
        stream_interval: seconds between two messages about one sequence at least, however many tokens come meanwhile; 0
            tells each token at once. Default: 0 while up to 16 sequences run, then rising to 0.1 with their number,
            because messages cost the event loop more than planning does. First tokens and ends never wait.
        num_speculative_tokens: tokens guessed per sequence and step by prompt lookup; 0 switches it off. Pays where
            answers repeat parts of their prompt (code edits, summaries, extraction); never changes the tokens drawn.
        tool_call_parser: how the model writes tool calls, under vLLM's names ("hermes", "llama3_json", "mistral" ...),
            "none", or "auto": as its chat template shows.
        reasoning_parser: how it marks reasoning ("qwen3", "deepseek_r1" ...), "none", or "auto".
        prompt_lookup_max, prompt_lookup_min: how many last tokens must have occurred before, at best and at least.
        stall_seconds: a token that took longer is marked in its request's trace, and a step that took longer gets a
            span, whatever is sampled.
        trace_step_interval: one step in so many gets a span with links to the requests in its batch; 0: only slow
            and failed ones.
        trace_content: put prompts and answers into spans; they may hold secrets.
        trace_vllm_attributes: add the older attribute names that vLLM and SGLang use.
        vllm_metrics: export metrics under vLLM's names, too.
        recent_requests: ended requests that `Engine.requests()` still knows.
        step_timeout_seconds: a step that has not ended after so long, and after ten times the longest one so far, makes
            the engine fail: its thread cannot be stopped, so the process must be replaced. 0: wait for ever. Threads
            that are still busy so long after `stop` are left behind, too.
        record_dir: folder for the replay bundles of requests that ask for one (`GenerationRequest.record_id`); it is
            made if it does not exist. Default: nothing is recorded.
        max_records, max_record_bytes: of all bundles in that folder; the oldest are removed when there are more.
        loop_stall_seconds: watch the event loop from a thread, and log what holds it when it has stood still for so
            long; 0: do not watch.

    Raises:
        ConfigError: names the field, the value and the fix.
    """

    model: str | None = None
    revision: str | None = None
    served_model_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    cpu_kernels: str = "auto"
    num_threads: int | None = None
    quantize: str = "auto"
    deterministic: bool = False
    model_impl: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_requests: int = 1024
    max_queued_tokens: int | None = None
    target_itl_ms: float | None = None
    kv_cache_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    page_size: int = 16
    enable_prefix_caching: bool = True
    adapters: Mapping[str, str] = {}
    max_loras: int = 8
    max_lora_rank: int = 64
    pipeline_depth: int | None = None
    stream_interval: float | None = None
    enable_cuda_graph: bool = True
    num_speculative_tokens: int = 0
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    stall_seconds: float = 0.5
    trace_step_interval: int = 64
    trace_content: bool = False
    trace_vllm_attributes: bool = False
    vllm_metrics: bool = False
    recent_requests: int = 300
    step_timeout_seconds: float = 600.0
    loop_stall_seconds: float = 0.0
    record_dir: str | None = None
    max_records: int = 1000
    max_record_bytes: int = 2**30

    def __post_init__(self) -> None:
        if DEVICE.fullmatch(self.device) is None:
            raise ConfigError(f"device is {self.device!r}; use auto, cpu, cuda, or cuda:1 for the second GPU")
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("cpu_kernels", self.cpu_kernels, CPU_KERNELS)
        _one_of("quantize", self.quantize, QUANTIZATIONS)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; use a share above 0 and up to 1, as 0.9"
            )
        _one_of("model_impl", self.model_impl, MODEL_IMPLS)
        _one_of("tool_call_parser", self.tool_call_parser, TOOL_CALL_PARSERS)
        _one_of("reasoning_parser", self.reasoning_parser, REASONING_PARSERS)
        _at_least("max_model_len", self.max_model_len, 2)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("num_threads", self.num_threads, 1)
        _at_least("max_num_requests", self.max_num_requests, 1)
        _at_least("max_queued_tokens", self.max_queued_tokens, 1)
        _above_zero("target_itl_ms", self.target_itl_ms)
        _at_least("kv_cache_bytes", self.kv_cache_bytes, 1)
        _at_least("max_loras", self.max_loras, 1)
        _at_least("max_lora_rank", self.max_lora_rank, 1)
        if len(self.adapters) > self.max_loras:
            raise ConfigError(
                f"{len(self.adapters)} adapters are given, and max_loras is {self.max_loras}; raise it or give fewer"
            )
        if self.page_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"page_size is {self.page_size}; use 8, 16, 32, 64 or 128")
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.max_num_batched_tokens and self.max_num_seqs and self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, below max_num_seqs ({self.max_num_seqs}); "
                "raise it or lower max_num_seqs, so that every running sequence gets its token in each step"
            )
        if self.pipeline_depth not in (None, 1, MAX_PIPELINE_DEPTH):
            raise ConfigError(f"pipeline_depth is {self.pipeline_depth}; use 1 or 2")
        if self.stream_interval is not None and not 0 <= self.stream_interval <= MAX_STREAM_INTERVAL:
            raise ConfigError(
                f"stream_interval is {self.stream_interval}; use seconds from 0 to {MAX_STREAM_INTERVAL:g}, or None"
            )
        _within("num_speculative_tokens", self.num_speculative_tokens, 0, MAX_SPECULATIVE_TOKENS)
        _within("prompt_lookup_max", self.prompt_lookup_max, 1, MAX_PROMPT_LOOKUP)
        _within("prompt_lookup_min", self.prompt_lookup_min, 1, MAX_PROMPT_LOOKUP)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min}, above prompt_lookup_max ({self.prompt_lookup_max}); "
                "lower it or raise prompt_lookup_max"
            )
        _above_zero("stall_seconds", self.stall_seconds)
        _at_least("trace_step_interval", self.trace_step_interval, 0)
        _zero_or_above("step_timeout_seconds", self.step_timeout_seconds)
        _zero_or_above("loop_stall_seconds", self.loop_stall_seconds)
        _at_least("max_records", self.max_records, 1)
        _at_least("max_record_bytes", self.max_record_bytes, 1)
        _not_empty("record_dir", self.record_dir)
        _within("recent_requests", self.recent_requests, 0, MAX_RECENT_REQUESTS)
        _not_empty("served_model_name", self.served_model_name)

    def num_seats(self, device: str) -> int:
        """`max_num_seqs`, or what suits a device, as torch names it."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        usual = CPU_SEATS if device == "cpu" else GPU_SEATS
        return min(usual, self.max_num_batched_tokens or usual)

    def tokens_per_step(self, device: str) -> int:
        """`max_num_batched_tokens`, or what suits a device."""
        usual = CPU_TOKENS_PER_STEP if device == "cpu" else GPU_TOKENS_PER_STEP
        return self.max_num_batched_tokens or max(usual, self.num_seats(device))


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineConfig` beside `model`, as keywords of `Engine`."""

    revision: str | None
    served_model_name: str | None
    device: str
    dtype: str
    cpu_kernels: str
    num_threads: int | None
    quantize: str
    deterministic: bool
    model_impl: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_num_requests: int
    max_queued_tokens: int | None
    target_itl_ms: float | None
    kv_cache_bytes: int | None
    kv_cache_dtype: str
    gpu_memory_utilization: float
    page_size: int
    enable_prefix_caching: bool
    adapters: Mapping[str, str]
    max_loras: int
    max_lora_rank: int
    pipeline_depth: int | None
    stream_interval: float | None
    enable_cuda_graph: bool
    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int
    tool_call_parser: str
    reasoning_parser: str
    stall_seconds: float
    trace_step_interval: int
    trace_content: bool
    trace_vllm_attributes: bool
    vllm_metrics: bool
    recent_requests: int
    step_timeout_seconds: float
    loop_stall_seconds: float
    record_dir: str | None
    max_records: int
    max_record_bytes: int


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; use one of {', '.join(allowed)}")


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise ConfigError(f"{name} is {value}; it must be at least {low}")


def _not_empty(name: str, value: str | None) -> None:
    if value == "":
        raise ConfigError(f"{name} is empty; leave it out or give a name")


def _above_zero(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ConfigError(f"{name} is {value}; it must be above 0")


def _zero_or_above(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ConfigError(f"{name} is {value}; it must be seconds, or 0 to switch it off")


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}; it must be from {low} to {high}")
