"""Models of random weights, made on the GPU in the shapes of real ones, and executors over them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.config import EngineConfig
from limelight.kernels.device import Device, DeviceMemory
from limelight.kernels.step_kernels import StepKernels
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from limelight.models.captured.loading import Loaded, Ready, captured_executor
from limelight.models.decoder import Decoder, parameter_shapes
from limelight.models.gpu_budget import GpuBudget
from limelight.models.hf_config import read_spec
from limelight.models.precision import Precision
from limelight.models.spec import ModelSpec

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
QWEN_600M = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 16384, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
TINY = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 64,
}  # fmt: skip
MODELS = {"Llama-3-8B": LLAMA_8B, "Qwen3-0.6B": QWEN_600M}
WEIGHT_SCALE = 0.02


class RandomParameters:
    """See `layers.Parameters`: normal numbers, and norms of one."""

    def __init__(self, spec: ModelSpec, machine: Machine) -> None:
        self._shapes = parameter_shapes(spec)
        self._device = device = machine.kernels.device
        self._dtype = TORCH_DTYPES[machine.dtype]
        self._generator = torch.Generator(device).manual_seed(1)

    def plain(self, name: str) -> Tensor:
        """Ones."""
        return torch.ones(self._shapes[name], dtype=self._dtype, device=self._device)

    def matrix(self, name: str) -> Tensor:
        """Normal numbers as small as those of trained weights."""
        made = torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
        return made.normal_(std=WEIGHT_SCALE, generator=self._generator)


class InlineDevice:
    """See `Device`: does all work at once, for runs without a GPU."""

    name = "cpu"
    num_processors = 2

    def run(self, work: Callable[[], object]) -> None:
        """Now."""
        work()

    def capture(self, work: Callable[[], object]) -> Any:
        """What is replayed is run again."""
        return _Inline(work)

    def event(self) -> Any:
        """Nothing to wait for."""
        return _Inline(lambda: None)

    def pinned(self, num_words: int) -> Tensor:
        """Plain memory."""
        return torch.zeros(num_words, dtype=torch.int32)

    def memory(self) -> DeviceMemory:
        """Some."""
        return DeviceMemory(total=2**30, free=2**30, own=0, peak=0)

    def reset_peak(self) -> None:
        """Nothing."""

    def trim(self) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing is in flight."""


@dataclass(frozen=True)
class _Inline:
    """A graph and an event."""

    replay: Callable[[], object]

    def record(self) -> None:
        """Nothing is behind."""

    def wait(self) -> None:
        """It is done."""


@dataclass(frozen=True)
class Machine:
    """What runs: the kernels and the device."""

    kernels: StepKernels
    device: Device
    is_dry: bool

    @property
    def dtype(self) -> str:
        """What is computed in. The interpreter multiplies matrices of bfloat16 wrongly."""
        return "float16" if self.is_dry else "bfloat16"


def this_machine(*, is_dry: bool) -> Machine:
    """The first GPU, or the interpreter on the CPU."""
    if is_dry:
        from limelight.kernels.triton.attention import Processor
        from limelight.kernels.triton.kernels import TritonKernels

        return Machine(TritonKernels("cpu", Processor(capability=90, num_processors=2)), InlineDevice(), is_dry=True)
    from limelight.kernels.cuda import CudaDevice
    from limelight.kernels.triton.make import triton_kernels

    return Machine(triton_kernels("cuda:0"), CudaDevice(0), is_dry=False)


def random_model(machine: Machine, name: str) -> tuple[ModelSpec, Decoder]:
    """A model of `MODELS`, tiny in a dry run."""
    config = MODELS[name] | (TINY if machine.is_dry else {})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        spec = read_spec(Path(folder), machine.dtype)
    parameters = RandomParameters(spec, machine)
    return spec, Decoder(spec, parameters, machine.kernels, spec.max_position_embeddings, lambda _fraction: None)


def executor_of(machine: Machine, spec: ModelSpec, model: Decoder, **settings: Any) -> Ready:
    """An executor with everything that serving gives it; `settings` of `EngineConfig`."""
    if machine.is_dry:
        settings |= {"max_num_seqs": 2, "max_num_batched_tokens": 16, "kv_cache_bytes": 2**16}
    config = EngineConfig(**settings)
    budget = GpuBudget.of(machine.device.memory(), config.gpu_memory_utilization)
    loaded = Loaded(model, spec, machine.kernels, Precision.uniform(machine.dtype))
    length = spec.max_position_embeddings
    return captured_executor(config, loaded, machine.device, budget, length, lambda _what, _fraction: None)
