"""Decoders without layers of our own, through transformers over our pages, against transformers alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from limelight.config import EngineConfig
from limelight.engine import Engine
from limelight.errors import ConfigError, UnsupportedModel
from limelight.generation import SamplingParams
from limelight.models.loading import load_model
from limelight.models.transformers_model.source import TransformersSource
from tests.cases.small_engines import together
from tests.models.families.agreement import assert_agrees, assert_same_logits, logits_of, prompt_of
from tests.models.sequences import Batch
from tests.models.tiny_models import Rig, save_byte_tokenizer, tiny_named

pytestmark = pytest.mark.usefixtures("one_torch_thread")
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2Config": {},
    "GPT2Config scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "GPTNeoXConfig": {"rotary_pct": 0.5, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "GPTBigCodeConfig": {"multi_query": True},
    "GPTJConfig": {"rotary_dim": 4},
    "OPTConfig": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "OlmoConfig": {"clip_qkv": 0.5},
    "Olmo2Config": {},
    "Olmo3Config": {"sliding_window": 11, "layer_types": ["sliding_attention", "full_attention"]},
    "GraniteConfig": {
        "logits_scaling": 2.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "embedding_multiplier": 3.0,
    },
    "Starcoder2Config": {"sliding_window": 9},
    "PhiConfig": {},
    "StableLmConfig": {},
    "CohereConfig": {"logit_scale": 0.5},
    "Cohere2Config": {"sliding_window": 11, "layer_types": ["sliding_attention", "full_attention"]},
    "GlmConfig": {"head_dim": 8, "pad_token_id": None},
    "NemotronConfig": {},
    "SmolLM3Config": {"no_rope_layers": [1, 0], "pad_token_id": None},
    "GemmaConfig": {"head_dim": 8},
    "MixtralConfig": EXPERTS,
    "OlmoeConfig": EXPERTS,
    "GraniteMoeConfig": EXPERTS,
    "Qwen2MoeConfig": {**EXPERTS, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    "DeepseekV3Config": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "moe_intermediate_size": 24, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8, "v_head_dim": 6, "num_key_value_heads": 4,
    },
    "LlamaConfig": {},
    "MistralConfig": {"sliding_window": 7},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_transformers_alone(name: str, tmp_path: Path) -> None:
    model = tiny_named(name, **MODELS[name])
    model.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert_agrees(plain, TransformersSource(tmp_path), Rig)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_stay_close(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_named("Olmo2Config")
    model.save_pretrained(tmp_path)
    rig = Rig(TransformersSource(tmp_path), dtype=dtype)
    prompt = prompt_of(45)
    batch = Batch(rig.executor, 8, range(64))
    batch.step((batch.sit(0, prompt), 45))
    expected = logits_of(model, prompt)[-1:]
    assert rig.logits.dtype == torch.float32
    assert float((rig.logits - expected).norm() / expected.norm()) < 0.1


def test_a_frequency_that_depends_on_length_is_served_while_it_does_not(tmp_path: Path) -> None:
    """Longrope: the context ends where transformers would change the frequencies of the whole batch."""
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "factor": 2.0,
    }
    model = tiny_named("LlamaConfig", rope_parameters=scaling)
    model.save_pretrained(tmp_path)
    source = TransformersSource(tmp_path)
    assert source.outline.longest_context == 64
    rig = Rig(source, max_model_len=64)
    batch = Batch(rig.executor, 8, range(64))
    prompt = prompt_of(63)
    batch.step((batch.sit(0, prompt), 63))
    assert_same_logits(rig.logits, logits_of(model, prompt)[-1:])


def test_two_models_in_one_process_do_not_meet(tmp_path: Path) -> None:
    rigs = []
    models = [tiny_named("GPT2Config"), tiny_named("Olmo2Config")]
    for index, model in enumerate(models):
        model.save_pretrained(tmp_path / str(index))
        rigs.append(Rig(TransformersSource(tmp_path / str(index))))
    prompt = prompt_of(20)
    batches = [Batch(rig.executor, 8, range(64)) for rig in rigs]
    sequences = [batch.sit(0, prompt) for batch in batches]
    for size in (12, 8, 1, 1):
        for batch, sequence in zip(batches, sequences, strict=True):
            batch.step((sequence, size))
    for rig, model, sequence in zip(rigs, models, sequences, strict=True):
        assert_same_logits(rig.logits, logits_of(model, sequence.tokens[:-1])[-1:])


def test_rows_that_see_each_other_outside_of_attention_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaky(transformers.models.gpt2.modeling_gpt2.GPT2MLP):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states + hidden_states.roll(1, 1))

    tiny_named("GPT2Config").save_pretrained(tmp_path)
    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2, "GPT2MLP", Leaky)
    with pytest.raises(UnsupportedModel, match="influence each other outside of attention"):
        Rig(TransformersSource(tmp_path))


def test_positions_that_do_not_start_at_zero_are_found(tmp_path: Path) -> None:
    tiny_named("RobertaConfig", is_decoder=True, pad_token_id=1).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="does not count positions from 0"):
        Rig(TransformersSource(tmp_path))


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 as the hub serves it, with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    tiny_named("GPT2Config", vocab_size=258, eos_token_id=256).save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.mark.anyio
async def test_an_engine_serves_it(gpt2_folder: Path) -> None:
    """Requests of different lengths at once, in a pool so small that some are preempted, two steps in flight."""
    model = AutoModelForCausalLM.from_pretrained(gpt2_folder, attn_implementation="eager")
    page_bytes = 2 * 2 * 8 * 4 * 8 * 4
    asks = [
        (letter * length, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        for letter, length in zip("aabcde", (30, 33, 5, 60, 17, 1), strict=True)
    ]
    async with Engine(
        str(gpt2_folder), device="cpu", page_size=8, kv_cache_bytes=20 * page_bytes, max_num_seqs=6,
        max_num_batched_tokens=24, max_model_len=120, pipeline_depth=2,
    ) as engine:  # fmt: skip
        for (prompt, _), generation in zip(asks, await together(engine, asks), strict=True):
            drawn, known = list(generation.outputs[0].token_ids), list(generation.prompt_token_ids)
            assert len(known) == len(prompt)
            expected = logits_of(model, (known + drawn)[:-1])[len(known) - 1 :]
            assert drawn == expected.argmax(-1).tolist()


def test_the_context_ends_with_the_table_of_positions(gpt2_folder: Path) -> None:
    config = EngineConfig(model=str(gpt2_folder), device="cpu", kv_cache_bytes=2**20, max_model_len=129)
    with pytest.raises(ConfigError, match=r"max_model_len is 129, .* positions end at 128; use at most 128"):
        load_model(config, lambda what, fraction: None)
