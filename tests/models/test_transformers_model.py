"""Decoders without layers of our own, through transformers over our pages, against transformers alone."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoModelForCausalLM

from limelight.models.transformers_source import TransformersSource
from tests.models.families.agreement import assert_agrees
from tests.models.tiny_models import SMALL, Rig, tiny_model

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


def tiny(name: str, **settings: Any) -> Any:
    """A tiny random decoder of a configuration class, with transformers' own plain attention."""
    settings = {**SMALL, "bos_token_id": None, "eos_token_id": 1, **settings}
    return tiny_model(getattr(transformers, name.split()[0]), **settings)


@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_transformers_alone(name: str, tmp_path: Path) -> None:
    model = tiny(name, **MODELS[name])
    model.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert_agrees(plain, TransformersSource(tmp_path), Rig)
