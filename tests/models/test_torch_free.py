"""A GGUF file runs on the kernels in C without torch, whose import takes longer than all the rest of a start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from limelight.kernels.cpu import build
from limelight.kernels.cpu.loading import load_library
from limelight.models.hub import resolve

SCRIPT = """
import asyncio, sys
from limelight import Engine, EngineConfig, SamplingParams

async def main():
    config = EngineConfig(device="cpu", max_model_len=256, kv_cache_bytes=2**26, quantize=sys.argv[1])
    async with Engine(config) as engine:
        answer = await engine.generate("The capital of France is", SamplingParams(temperature=0.0, max_tokens=2))
        assert answer.usage.completion_tokens == 2, answer

asyncio.run(main())
print(sorted({"torch", "transformers", "huggingface_hub", "safetensors"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("quantize", ["auto", "int8", "int4", "none"])
def test_the_default_model_starts_and_answers_without_torch(quantize: str) -> None:
    if load_library() is None:
        pytest.skip("the kernels in C are not to be had here")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, quantize], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]"


INSPECT = """
import sys
from pathlib import Path
from limelight.config import EngineConfig
from limelight.kernels.cpu import build, loading
from limelight.models.inspection import inspect_model

def compile_library(*_arguments, **_more):
    raise AssertionError("nothing is to be compiled")

build.compile_library = compile_library
loading.COMPILED = Path("/nowhere")
found = inspect_model(Path(sys.argv[1]), EngineConfig(device="cpu", max_model_len=256, kv_cache_bytes=2**26))
assert found.weights_kept == "as stored", found
print(found.weights_bytes)
"""


def test_a_model_is_inspected_before_there_are_kernels(tmp_path: Path) -> None:
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    path = resolve(None, None, lambda _stage, _fraction: None)
    sizes = [
        subprocess.run(
            [sys.executable, "-c", INSPECT, str(path)],
            env={**os.environ, **environment},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for environment in ({}, {"XDG_CACHE_HOME": str(tmp_path)})
    ]  # fmt: skip
    assert sizes[0] == sizes[1]
