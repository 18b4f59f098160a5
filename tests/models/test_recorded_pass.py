"""What a recorded pass takes of memory, beside what the memory plan says beforehand."""

from pathlib import Path

import pytest

from limelight.kernels.cpu.sampling import SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.interface import KVLayout
from limelight.models.kv_cache import allocate_kv_cache, kv_layout
from limelight.models.lora.recorded_adapters import RecordedAdapters
from limelight.models.memory_plan import plan_memory
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


CONTEXTS = {"short": 128, "long": 8192}


@pytest.mark.parametrize("num_tokens", [32, 512])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_memory_plan_knows_what_a_step_takes(name: str, context: str, num_tokens: int, tmp_path: Path) -> None:
    architecture, settings = MODELS[name]
    checkpoint = saved(TINY_FAMILIES[architecture](**settings, max_position_embeddings=8192), tmp_path)
    kernels, spec, max_rank = c_kernels(), checkpoint.spec, 16
    precision = Precision(values="float32", kv="bfloat16", weights="Q8_0" if num_tokens == 32 else None)
    limits = StepLimits(
        num_tokens=num_tokens, num_seats=32, num_sampled=32, max_pages=CONTEXTS[context] // 16, page_size=16
    )
    source = NativeSource(checkpoint)
    planned = source.working_bytes(kernels, precision, limits, max_rank)
    model = source.load(kernels, precision, CONTEXTS[context], lambda _what, _fraction: None)
    kv = allocate_kv_cache(kernels, kv_layout(spec, 8, 16, precision.kv))
    buffers = StepBuffers(limits)
    sampling = SamplingBuffers(buffers, spec.vocab_size)
    plain = record_pass(model, kernels, kv, buffers, sampling, None)
    adapters = RecordedAdapters(model.adaptable, kernels, limits, 4, max_rank)
    adapted = record_pass(model, kernels, kv, buffers, sampling, adapters)
    taken = max(len(plain.program.memory), len(adapted.program.memory))
    assert taken <= planned <= 1.1 * taken


@pytest.mark.parametrize(("num_pages", "head_dim"), [(1, 64), (16, 7), (37, 33), (64, 128)])
def test_the_memory_plan_knows_what_the_pool_takes(num_pages: int, head_dim: int) -> None:
    kernels = c_kernels()
    layout = KVLayout(
        num_layers=3, num_pages=num_pages, page_size=16, num_kv_heads=2, head_dim=head_dim, dtype="float16"
    )
    page_bytes = kernels.page_bytes(layout)
    plan = plan_memory(
        weights_bytes=0,
        page_bytes=page_bytes,
        page_size=16,
        context_length=2**20,
        max_model_len=None,
        kv_cache_bytes=num_pages * page_bytes,
        free_bytes=None,
        max_num_seqs=8,
        pages_per_run=kernels.pages_per_run,
    )
    assert plan.num_pages == num_pages
    taken = sum(len(layer) for layer in kernels.allocate_kv(layout).layers)
    assert taken == plan.kv_bytes
