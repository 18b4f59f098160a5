"""Tiny random models as transformers makes and saves them, and the same opened by Limelight."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
)

from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.loading import load_library
from limelight.kernels.cpu.recorder import Value, bound
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.interface import Kernels
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.torch_dtypes import name_of
from limelight.models.checkpoint import Checkpoint, open_checkpoint
from limelight.models.forward_batch import ForwardBatch
from limelight.models.kv_cache import allocate_kv_cache, kv_layout
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.precision import Precision
from limelight.models.recorded_step_executor import RecordedStepExecutor, step_limits
from limelight.models.source import AdaptableModel, NativeSource, Source
from limelight.models.step_executor import TorchStepExecutor
from limelight.models.transformers_model.source import TransformersSource
from limelight.step import Capacity, StepExecutor

VOCAB_SIZE = 97
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}


def tiny_model(config_class: type[PretrainedConfig], **settings: Any) -> Any:
    """The decoder that a configuration class belongs to, whose random weights are large enough for every part to show
    in the logits; equal weights for equal shapes."""
    return with_random_weights(AutoModelForCausalLM.from_config(config_class(**{**SMALL, **settings})))


def tiny_named(name: str, **settings: Any) -> Any:
    """The decoder of the configuration class of that name (what follows a blank is ignored); token 1 ends a text."""
    settings = {"bos_token_id": None, "eos_token_id": 1, **settings}
    return tiny_model(getattr(transformers, name.split()[0]), **settings)


def tiny_llama(**settings: Any) -> LlamaForCausalLM:
    """A Llama with such weights."""
    return with_random_weights(LlamaForCausalLM(LlamaConfig(**{**SMALL, **settings})))


def tiny_mistral(**settings: Any) -> MistralForCausalLM:
    """The same for Mistral."""
    return with_random_weights(MistralForCausalLM(MistralConfig(**{**SMALL, **settings})))


def with_random_weights(model: Any) -> Any:
    """Biases start as zeros and norms as ones in transformers, which would hide them."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def saved(model: Any, folder: Path) -> Checkpoint:
    """`model` through files: what Limelight reads of it."""
    model.save_pretrained(folder)
    return open_checkpoint(folder)


def save_byte_tokenizer(folder: Path) -> None:
    """A `tokenizer.json` of the 256 bytes and the special tokens <end> and <stop>, 256 and 257."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<stop>"])
    tokenizer.save(str(folder / "tokenizer.json"))


class Recording:
    """A model that keeps the logits of its last forward pass."""

    def __init__(self, model: AdaptableModel) -> None:
        self._forward = model.forward
        self.body, self.normed, self.project = model.body, model.normed, model.project
        self.adaptable = model.adaptable
        self._logits: Any = torch.empty(0)

    @property
    def logits(self) -> torch.Tensor:
        if isinstance(self._logits, Value):
            assert self._logits.memory is not None
            return torch.from_numpy(self._logits.memory[: self._logits.rows.counter[0]].copy())
        return self._logits

    def forward(self, batch: ForwardBatch, kv: Any) -> Any:
        logits = self._forward(batch, kv)
        if isinstance(logits, Value):
            # Passes that are recorded with adapters and without leave their logits in one place.
            before = self._logits.memory if isinstance(self._logits, Value) else None
            logits.memory = np.zeros((logits.rows.largest, logits.width), np.float32) if before is None else before
            self._logits = logits
        else:
            self._logits = logits.clone()
        return logits


@functools.cache
def c_library() -> Library | None:
    return load_library()


def c_kernels() -> CpuKernels:
    """The kernels in C; where no compiler makes them, the test is skipped."""
    library = c_library()
    if library is None:
        pytest.skip("there is no C compiler")
    return CpuKernels(library)


class Rig:
    """An executor over a checkpoint, whose pages start as NaN, and the logits of its last step."""

    def __init__(
        self,
        checkpoint: Checkpoint | TransformersSource,
        *,
        max_model_len: int = 128,
        num_pages: int = 64,
        page_size: int = 8,
        num_seats: int = 8,
        dtype: torch.dtype = torch.float32,
        kernels: Kernels | None = None,
    ) -> None:
        source: Source = checkpoint if isinstance(checkpoint, TransformersSource) else NativeSource(checkpoint)
        self._kernels = kernels = kernels or ReferenceKernels("cpu")
        in_c = isinstance(kernels, CpuKernels)
        name = name_of(dtype)
        precision = Precision(values="float32", kv=name, weights=None) if in_c else Precision.uniform(name)
        model = source.load(kernels, precision, max_model_len, lambda what, fraction: None)
        self.kv = allocate_kv_cache(kernels, kv_layout(source.outline, num_pages, page_size, name))
        for layer in self.kv.layers:
            layer.fill(0xFF) if in_c else layer.fill_(torch.nan)
        self.capacity = Capacity(
            num_pages=num_pages,
            page_size=page_size,
            num_seats=num_seats,
            max_num_batched_tokens=512,
            max_model_len=max_model_len,
            vocab_size=source.outline.vocab_size,
        )
        self.recording = Recording(model)
        self.adaptable, self.unreadable = model.adaptable, model.unreadable
        self.adapters: dict[int, AdapterWeights] = {}
        self.executor: StepExecutor
        if isinstance(kernels, CpuKernels):
            self.executor = RecordedStepExecutor(
                self.recording,
                kernels,
                self.kv,
                vocab_size=self.capacity.vocab_size,
                limits=step_limits(self.capacity, num_speculative_tokens=4),
                num_threads=2,
                adapters=self.adapters,
                max_adapters=4,
                max_adapter_rank=16,
            )
        else:
            self.executor = TorchStepExecutor(self.recording, kernels, self.kv, self.capacity, self.adapters)

    def spoil(self, page: int) -> None:
        """Turn what a page holds into NaN."""
        layout = self.kv.layout
        if not isinstance(self._kernels, CpuKernels):
            for layer in self.kv.layers:
                layer.view(layout.num_pages, -1)[page] = torch.nan
            return
        size = layout.page_size
        buffers = StepBuffers(StepLimits(num_tokens=size, num_seats=1, num_sampled=1, max_pages=1, page_size=size))
        buffers.counts[0] = size
        buffers.slots[:] = page * size + np.arange(size)
        rows = bound(buffers.tokens, np.full((size, layout.num_kv_heads * layout.head_dim), np.nan, np.float32))
        with self._kernels.recording() as recorder:
            plan = self._kernels.plan(buffers, self.kv)
            for number in range(layout.num_layers):
                self._kernels.write(self.kv, number, rows, rows, plan)
            program, _ = recorder.finish()
        program.run()

    @property
    def logits(self) -> torch.Tensor:
        """[sampled, vocab] of the last step."""
        return self.recording.logits
