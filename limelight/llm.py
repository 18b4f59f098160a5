"""`LLM`: offline generation for scripts and notebooks, synchronous, with vLLM's calls.

Its engine lives in a daemon thread (`offline/background_engine.py`), so that it works where a loop already runs (a
notebook) and a script that never closes it still ends at once. It never touches the caller's loop, signals or logging.
"""

import contextlib
import itertools
import random
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from opentelemetry import context as otel_context

from limelight.config import EngineConfig
from limelight.engine import Engine
from limelight.errors import ConfigError, EngineNotRunning, InvalidRequest
from limelight.generation import ChatPrompt, Generation, GenerationRequest, Prompt, SamplingParams
from limelight.offline.adapters import LoRARequests, OfflineAdapters
from limelight.offline.background_engine import BackgroundEngine
from limelight.offline.progress import OfflineProgress
from limelight.offline.prompts import PromptInput, as_list, as_prompt

VLLM_DEFAULT_MAX_TOKENS = 16
"""Output limit where neither the caller nor the model's `generation_config.json` sets one; as in vLLM."""

Messages = Sequence[Mapping[str, Any]]
_SEED_BITS = 63


class LLM:
    """A model for offline use: every call returns when all of its prompts are done.

        llm = LLM(model="path-or-id")
        for output in llm.generate(["Hello", "Once upon"], SamplingParams(temperature=0.7, top_p=0.95)):
            print(output.prompt, output.outputs[0].text)

    The keyword names are vLLM's. Those that would change results and that Limelight does not have are refused by name;
    those that only tune vLLM's own machinery are accepted, with a warning.

    Args:
        model: a folder, a `.gguf` file, a hub id, or None for the default model.
        tokenizer: the model's own, which is the only choice.
        revision: branch, tag or commit of a hub id.
        dtype: "auto", "float32", "bfloat16", "float16" (vLLM's "float", "half" and "bfloat16" too).
        seed: makes prompts without a seed of their own reproducible, in the order they are given; None draws seeds.
        max_model_len, max_num_seqs, max_num_batched_tokens, served_model_name, device: as in `EngineConfig`.
        cpu_kernels, num_threads, quantize, deterministic: likewise.
        kv_cache_memory_bytes: size of the KV pool; default: a share of the free memory.
        kv_cache_dtype, gpu_memory_utilization: as in `EngineConfig`.
        block_size: tokens per KV page.
        enable_prefix_caching: share pages of equal prefixes between prompts.
        max_loras, max_lora_rank: adapters that may be loaded at once, and how large they may be.
        enable_lora: accepted for vLLM's sake: adapters are there whenever a call brings one.
        tensor_parallel_size, pipeline_parallel_size, data_parallel_size: 1.
        quantization: None; quantised models need no option.
        enforce_eager: on a GPU, capture no passes (`enable_cuda_graph`).
        trust_remote_code, swap_space, enable_chunked_prefill, disable_log_stats: without effect here.

    Raises:
        ConfigError: a value is out of range or not supported.
        ModelError: the model cannot be found, read or fitted into memory.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        tokenizer: str | None = None,
        revision: str | None = None,
        dtype: str = "auto",
        seed: int | None = None,
        device: str = "auto",
        cpu_kernels: str = "auto",
        num_threads: int | None = None,
        quantize: str = "auto",
        deterministic: bool = False,
        served_model_name: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        kv_cache_dtype: str = "auto",
        block_size: int | None = None,
        enable_prefix_caching: bool | None = None,
        enable_lora: bool | None = None,
        max_loras: int | None = None,
        max_lora_rank: int | None = None,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        data_parallel_size: int = 1,
        quantization: str | None = None,
        trust_remote_code: bool | None = None,
        gpu_memory_utilization: float | None = None,
        enforce_eager: bool | None = None,
        swap_space: float | None = None,
        enable_chunked_prefill: bool | None = None,
        disable_log_stats: bool | None = None,
    ) -> None:
        _refuse_parallel("tensor_parallel_size", tensor_parallel_size)
        _refuse_parallel("pipeline_parallel_size", pipeline_parallel_size)
        _refuse_parallel("data_parallel_size", data_parallel_size)
        if quantization is not None:
            raise ConfigError(
                f"quantization is {quantization!r}; leave it out: the model's files say themselves how it is quantised"
            )
        if tokenizer is not None and tokenizer != model:
            raise ConfigError(f"tokenizer is {tokenizer!r}; leave it out: a model is served with its own tokenizer")
        _warn_without_effect(
            {
                "trust_remote_code": trust_remote_code,
                "swap_space": swap_space,
                "enable_chunked_prefill": enable_chunked_prefill,
                "disable_log_stats": disable_log_stats,
            }
        )
        options: dict[str, Any] = {
            "model": model,
            "revision": revision,
            "dtype": {"float": "float32", "half": "float16"}.get(dtype, dtype),
            "device": device,
            "cpu_kernels": cpu_kernels,
            "num_threads": num_threads,
            "quantize": quantize,
            "deterministic": deterministic,
            "served_model_name": served_model_name,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "kv_cache_bytes": kv_cache_memory_bytes,
            "kv_cache_dtype": kv_cache_dtype,
            "gpu_memory_utilization": gpu_memory_utilization,
            "page_size": block_size,
            "enable_prefix_caching": enable_prefix_caching,
            "enable_cuda_graph": None if enforce_eager is None else not enforce_eager,
            "max_loras": max_loras,
            "max_lora_rank": max_lora_rank,
        }
        config = EngineConfig(**{name: value for name, value in options.items() if value is not None})
        self._start(Engine(config), seed)

    @classmethod
    def from_engine(cls, engine: Engine, *, seed: int | None = None) -> Self:
        """An LLM over an engine that has not been started; it starts and stops it on its own event loop."""
        llm = cls.__new__(cls)
        llm._start(engine, seed)  # noqa: SLF001 (its own)
        return llm

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: LoRARequests = None,
    ) -> list[Generation]:
        """Generates for every prompt, many at a time; the answers come in the order of the prompts.

        Args:
            prompts: one or a list of: text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`.
            sampling_params: for all prompts, or one each; None: `get_default_sampling_params()`.
            use_tqdm: show a progress bar on stderr.
            lora_request: the LoRA adapter to run with, for all prompts or one each; loaded when it is first named.

        Raises:
            InvalidRequest: a prompt or its settings cannot work; the other prompts are given up.
            ModelError: an adapter cannot be loaded.
            EngineFailed, StepFailure: as the engine raises them.
            EngineNotRunning: after `close()`.
        """
        listed = [as_prompt(prompt, index) for index, prompt in enumerate(as_list(prompts))]
        return self._run(listed, sampling_params, use_tqdm, lora_request)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: LoRARequests = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Generation]:
        """Answers one conversation (a list of messages) or a list of conversations.

        Args:
            messages: `[{"role": "user", "content": "Hello"}]`, or a list of such lists.
            sampling_params, use_tqdm, lora_request: as in `generate`.
            add_generation_prompt, continue_final_message, tools: as in `ChatPrompt`.
            chat_template_kwargs: further variables for the model's template.

        Raises:
            InvalidRequest: also when the model's template refuses the messages.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts: list[Prompt] = [
            ChatPrompt(
                messages=tuple(conversation),  # type: ignore[arg-type]
                tools=None if tools is None else tuple(tools),
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                template_arguments=chat_template_kwargs or {},
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm, lora_request)

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own settings (`generation_config.json`), used where a call names none."""
        defaults = self._background.default_sampling
        if defaults.max_tokens is None:
            return msgspec.structs.replace(defaults, max_tokens=VLLM_DEFAULT_MAX_TOKENS)
        return defaults

    def close(self) -> None:
        """Stops the engine and gives its memory and threads back. Calling it again does nothing."""
        self._closed = True
        self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Without this, `llm = LLM(...)` run twice in a notebook would keep both models in memory.
        background = getattr(self, "_background", None)
        if background is not None:
            background.request_stop()

    def _start(self, engine: Engine, seed: int | None) -> None:
        self._seeds = None if seed is None else random.Random(seed)  # noqa: S311 (reproducible on purpose)
        self._numbers = itertools.count()
        self._closed = False
        self._background = BackgroundEngine(engine)
        self._adapters = OfflineAdapters(self._background)

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        lora_request: LoRARequests,
    ) -> list[Generation]:
        if self._closed:
            raise EngineNotRunning("this LLM has been closed; make a new one")
        each = self._each(sampling, len(prompts))
        adapters = self._adapters.names(lora_request, len(prompts))
        trace_context = otel_context.get_current()  # the engine's thread has another one
        requests = [
            GenerationRequest(
                request_id=f"offline-{next(self._numbers)}",
                prompt=prompt,
                sampling=self._seeded(params),
                adapter=adapter,
                trace_context=trace_context,
            )
            for prompt, params, adapter in zip(prompts, each, adapters, strict=True)
        ]
        generations: dict[int, Generation] = {}
        with (
            OfflineProgress(len(requests), shown=use_tqdm) as progress,
            contextlib.closing(self._background.run(requests)) as finished,
        ):
            for index, generation in finished:
                generations[index] = generation
                progress.add(generation.usage)
        return [generations[index] for index in range(len(requests))]

    def _each(
        self, sampling: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if sampling is None:
            return [self.get_default_sampling_params()] * num_prompts
        if isinstance(sampling, SamplingParams):
            return [sampling] * num_prompts
        if len(sampling) != num_prompts:
            raise InvalidRequest(
                f"there are {num_prompts} prompts and {len(sampling)} sampling_params; give one for all, or one each",
                param="sampling_params",
            )
        return sampling

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if self._seeds is None or params.seed is not None:
            return params
        return msgspec.structs.replace(params, seed=self._seeds.getrandbits(_SEED_BITS))


def _refuse_parallel(name: str, size: int) -> None:
    if size != 1:
        raise ConfigError(
            f"{name} is {size}; Limelight runs a model in one process on one device: leave it out or use 1"
        )


def _warn_without_effect(options: Mapping[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        warnings.warn(f"without effect in Limelight: {', '.join(given)}", UserWarning, stacklevel=3)
