"""A GGUF file runs on the kernels in C without torch, whose import takes longer than all the rest of a start."""

import subprocess
import sys

import pytest

from limelight.kernels.cpu.loading import load_library

SCRIPT = """
import asyncio, sys
from limelight import Engine, EngineConfig, SamplingParams

async def main():
    async with Engine(EngineConfig(device="cpu", max_model_len=256, kv_cache_bytes=2**26)) as engine:
        answer = await engine.generate("The capital of France is", SamplingParams(temperature=0.0, max_tokens=2))
        assert answer.usage.completion_tokens == 2, answer

asyncio.run(main())
print(sorted({"torch", "transformers", "huggingface_hub", "safetensors"} & sys.modules.keys()))
"""


def test_the_default_model_starts_and_answers_without_torch() -> None:
    if load_library() is None:
        pytest.skip("the kernels in C are not to be had here")
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]"
