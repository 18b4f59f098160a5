"""The Gemma family against transformers, on tiny random weights."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
)

from tests.models.families.agreement import assert_agrees, assert_all_differ
from tests.models.tiny_models import saved, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TINY: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "sliding_window": 9,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
PATTERN = {"sliding_window_pattern": 3}
LINEAR = {"rope_type": "linear", "factor": 4.0}
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 2000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}


def tiny_gemma1(**settings: Any) -> Any:
    own = {name: value for name, value in TINY.items() if name not in ("query_pre_attn_scalar", "sliding_window")}
    return tiny_model(GemmaConfig, **{**own, **settings})


def tiny_gemma2(**settings: Any) -> Any:
    return tiny_model(Gemma2Config, **{**TINY, **CAPS, **settings})


def tiny_gemma3(**settings: Any) -> Any:
    return tiny_model(Gemma3TextConfig, **{**TINY, **PATTERN, **settings})


MODELS = {
    "gemma": (tiny_gemma1, {}),
    "gemma, legacy activation": (tiny_gemma1, {"hidden_act": "gelu"}),
    "gemma, one kv head": (tiny_gemma1, {"num_key_value_heads": 1, "attention_bias": True}),
    "gemma2": (tiny_gemma2, {}),
    "gemma2, no caps": (tiny_gemma2, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, own layers": (tiny_gemma2, {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    "gemma2, biases": (tiny_gemma2, {"attention_bias": True}),
    "gemma2, window of one": (tiny_gemma2, {"sliding_window": 1}),
    "gemma2, own head": (tiny_gemma2, {"tie_word_embeddings": False}),
    "gemma3": (tiny_gemma3, {}),
    "gemma3, local rope": (tiny_gemma3, {"rope_local_base_freq": 30.0, "rope_theta": 3000.0}),
    "gemma3, scaled": (tiny_gemma3, {"rope_scaling": LINEAR}),
    "gemma3, nested ropes": (tiny_gemma3, {"rope_parameters": ROPES}),
    "gemma3, own layers": (tiny_gemma3, {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    "gemma3, full attention only": (tiny_gemma3, {"layer_types": ["full_attention"] * 4}),
    "gemma3, capped logits": (tiny_gemma3, {"final_logit_softcapping": 5.0}),
    "gemma3, biases": (tiny_gemma3, {"attention_bias": True}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    make, options = MODELS[name]
    model = make(**options)
    assert_agrees(model, saved(model, tmp_path))


def test_every_setting_of_gemma2_reaches_the_logits() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 12},
        {"sliding_window": 10},
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
        {"rope_theta": 100.0},
        {"rms_norm_eps": 0.1},
        {"hidden_activation": "silu"},
    ]
    assert_all_differ([tiny_gemma2(**change) for change in settings])


def test_every_setting_of_gemma3_reaches_the_logits() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"sliding_window_pattern": 2},
        {"rope_scaling": LINEAR},
        {"rope_theta": 100.0},
        {"rope_local_base_freq": 100.0},
        {"rope_parameters": ROPES},
        {"sliding_window": 10},
        {"query_pre_attn_scalar": 12},
        {"final_logit_softcapping": 5.0},
    ]
    assert_all_differ([tiny_gemma3(**change) for change in settings])
