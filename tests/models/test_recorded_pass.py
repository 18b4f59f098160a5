"""What a recorded pass takes of memory, beside what the memory plan says beforehand."""

from pathlib import Path

import pytest

from limelight.kernels.cpu.sampling import SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.models.decoder import working_bytes
from limelight.models.kv_cache import allocate_kv_cache, kv_layout
from limelight.models.precision import Precision
from limelight.models.recorded_pass import record_pass
from limelight.models.source import NativeSource
from tests.models.families.tiny_families import TINY_FAMILIES
from tests.models.tiny_models import c_kernels, saved

SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {
    "wide rows": ("llama", {**SIZES, "vocab_size": 300}),
    "a large vocabulary": ("llama", {**SIZES, "vocab_size": 9000}),
    "experts": ("qwen3_moe", {**SIZES, "moe_intermediate_size": 256, "vocab_size": 300}),
    "a shared expert": ("qwen2_moe", {**SIZES, "shared_expert_intermediate_size": 512, "vocab_size": 300}),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_memory_plan_knows_about_what_a_step_takes(name: str, tmp_path: Path) -> None:
    architecture, settings = MODELS[name]
    checkpoint = saved(TINY_FAMILIES[architecture](**settings), tmp_path)
    kernels, spec = c_kernels(), checkpoint.spec
    precision = Precision(values="float32", kv="bfloat16", weights=None)
    limits = StepLimits(num_tokens=512, num_seats=64, num_sampled=64, max_pages=8, page_size=16)
    model = NativeSource(checkpoint).load(kernels, precision, 128, lambda _what, _fraction: None)
    kv = allocate_kv_cache(kernels, kv_layout(spec, 8, 16, precision.kv))
    buffers = StepBuffers(limits)
    recorded = record_pass(model, kernels, kv, buffers, SamplingBuffers(buffers, spec.vocab_size), None)
    planned = working_bytes(spec, limits.num_tokens, limits.num_sampled)
    assert 0.8 * recorded.program.num_bytes < planned < 2 * recorded.program.num_bytes
