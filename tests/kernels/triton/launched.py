"""What Triton is asked to compile while an executor is made, and while it then serves: a program, without the
interpreter and without a GPU. Nothing is compiled and nothing runs; kernels leave memory as it is.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks.gpu_model import random_model, this_machine
from limelight.config import EngineConfig
from limelight.models.captured import launcher
from limelight.models.captured.loading import Loaded, captured_executor
from limelight.models.gpu_budget import GpuBudget
from limelight.models.precision import Precision
from limelight.step import Chunk, SeatSampling, SeatTaken, Step, StepExecutor

MOST_TOKENS = 200
SAMPLINGS = (
    SeatSampling(temperature=0.0),
    SeatSampling(temperature=0.8, top_k=50, top_p=0.9, frequency_penalty=0.1),
    SeatSampling(temperature=1.0, num_logprobs=3),
)


class AbsentGpu:
    """What a launch asks of Triton's driver."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def main() -> None:
    """Print the kernels compiled before serving, and those compiled while serving."""
    asked: list[tuple[str, str]] = []

    def note(*, key: Any, fn: Any, **_: Any) -> bool:
        asked.append((fn.name, str(key)))
        return True  # it need not be compiled

    driver.set_active(AbsentGpu())
    triton.knobs.runtime.jit_cache_hook = note
    launcher.LARGEST_CAPTURED_TOKENS = 64  # so that some steps are too large
    machine = this_machine(is_dry=True)
    spec, model = random_model(machine, "Qwen3-0.6B")
    config = EngineConfig(max_num_seqs=24, max_num_batched_tokens=MOST_TOKENS, kv_cache_bytes=2**20)
    budget = GpuBudget.of(machine.device.memory(), config.gpu_memory_utilization)
    loaded = Loaded(model, spec, machine.kernels, Precision.uniform(machine.dtype))
    ready = captured_executor(config, loaded, machine.device, budget, 64, lambda _what, _fraction: None)
    before = set(asked)
    asked.clear()
    for sampling in SAMPLINGS:
        for num_sequences in (1, 2, 3, 5, 7, 24):
            serve(ready.executor, num_sequences, sampling)
    print(json.dumps([sorted({name for name, _ in before}), sorted({name for name, _ in set(asked) - before})]))


def serve(executor: StepExecutor, num_sequences: int, sampling: SeatSampling) -> None:
    """Prompts of one token and more, longer parts of them, and decodes."""
    seats = range(num_sequences)
    taken = tuple(SeatTaken(seat=seat, sampling=sampling, num_prompt_tokens=1) for seat in seats)
    ends = [1 + seat % 3 for seat in seats]
    more = min(40, MOST_TOKENS // num_sequences)
    executor.submit(Step(number=1, chunks=tuple(_chunk(seat, 0, ends[seat]) for seat in seats), taken=taken))()
    executor.submit(Step(number=2, chunks=tuple(_chunk(seat, ends[seat], more) for seat in seats)))()
    executor.submit(Step(number=3, chunks=tuple(_chunk(seat, ends[seat] + more, 1) for seat in seats)))()
    executor.submit(Step(number=4, chunks=(), released=tuple(seats)))()


def _chunk(seat: int, start: int, num_tokens: int) -> Chunk:
    return Chunk(
        seat=seat,
        start=start,
        num_tokens=num_tokens,
        token_ids=(1,) * num_tokens,
        new_pages=(0,) * 4 if start == 0 else (),
        sample=True,
    )


if __name__ == "__main__":
    main()
