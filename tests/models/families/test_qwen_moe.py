"""Qwen's mixture-of-experts models against transformers, on tiny random weights in float32."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, Qwen2MoeConfig, Qwen3MoeConfig

from limelight.errors import CheckpointError
from limelight.kernels.reference import ReferenceKernels
from limelight.models.decoder import weights_bytes
from limelight.models.hf_config import read_spec
from tests.models.families.agreement import assert_agrees, assert_all_differ, assert_same_logits_in_chunks
from tests.models.tiny_models import saved, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 24}
WINDOW = {"use_sliding_window": True, "sliding_window": 9}

WHOLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen3_moe": (Qwen3MoeConfig, {**EXPERTS, "norm_topk_prob": True, "head_dim": 16}),
    "qwen3_moe, sliding": (Qwen3MoeConfig, {**EXPERTS, **WINDOW, "tie_word_embeddings": True}),
    "qwen2_moe": (Qwen2MoeConfig, SHARED),
}
SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "every second layer": (Qwen3MoeConfig, {**EXPERTS, "decoder_sparse_step": 2}),
    "a dense layer": (Qwen3MoeConfig, {**EXPERTS, "mlp_only_layers": [1]}),
    "dense layers only": (Qwen3MoeConfig, {**EXPERTS, "mlp_only_layers": [0, 1]}),
    "one expert of each token": (Qwen3MoeConfig, {**EXPERTS, "num_experts_per_tok": 1}),
    "all experts": (Qwen3MoeConfig, {**EXPERTS, "num_experts_per_tok": 5, "norm_topk_prob": True}),
    "odd sizes": (Qwen3MoeConfig, {**EXPERTS, "moe_intermediate_size": 7, "hidden_size": 36, "head_dim": 6}),
    "attention biases": (Qwen3MoeConfig, {**EXPERTS, "attention_bias": True}),
    "no experts": (Qwen3MoeConfig, {**EXPERTS, "num_experts": 0}),
    "qwen2_moe, normalised": (Qwen2MoeConfig, {**SHARED, "norm_topk_prob": True}),
    "qwen2_moe, no biases": (Qwen2MoeConfig, {**SHARED, "qkv_bias": False}),
    "qwen2_moe, sliding": (Qwen2MoeConfig, {**SHARED, **WINDOW, "max_window_layers": 1}),
    "qwen2_moe, dense layer": (Qwen2MoeConfig, {**SHARED, "mlp_only_layers": [0]}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    config, options = WHOLE[name]
    model = tiny_model(config, **options)
    assert_agrees(model, saved(model, tmp_path))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_mean_what_they_mean_to_transformers(name: str, tmp_path: Path) -> None:
    config, options = SETTINGS[name]
    model = tiny_model(config, **options)
    model.set_experts_implementation("eager")  # the other one refuses odd sizes
    assert_same_logits_in_chunks(model, saved(model, tmp_path))


def test_every_setting_reaches_the_logits() -> None:
    """Guards the comparisons above: transformers must not have ignored a setting."""
    variants: list[dict[str, Any]] = [
        {},
        WINDOW,
        {"norm_topk_prob": True},
        {"num_experts_per_tok": 1},
        {"num_experts_per_tok": 5},
        {"mlp_only_layers": [1]},
        {"mlp_only_layers": [0]},
    ]
    assert_all_differ([tiny_model(Qwen3MoeConfig, **{**EXPERTS, **variant}) for variant in variants])
    assert_all_differ(
        [
            tiny_model(Qwen2MoeConfig, **{**SHARED, **variant})
            for variant in ({}, {"norm_topk_prob": True}, {"shared_expert_intermediate_size": 25})
        ]
    )


def test_experts_that_tie_are_chosen_as_in_transformers(tmp_path: Path) -> None:
    """Rows of zeros score alike, and scores far below the best all round to a probability of zero."""
    model = tiny_model(Qwen3MoeConfig, **{**EXPERTS, "num_experts_per_tok": 3})
    with torch.no_grad():
        model.model.layers[0].mlp.gate.weight[1:4] = 0
        model.model.layers[1].mlp.gate.weight.mul_(1000)
    assert_same_logits_in_chunks(model, saved(model, tmp_path))


def test_weights_in_bytes_count_all_experts(tmp_path: Path) -> None:
    model = tiny_model(Qwen2MoeConfig, **SHARED)
    spec = saved(model, tmp_path).spec
    kernels = ReferenceKernels("cpu")
    assert weights_bytes(spec, kernels, "float32") == sum(4 * p.numel() for p in model.parameters())
    assert weights_bytes(spec, kernels, "bfloat16") == sum(2 * p.numel() for p in model.parameters())


def write(folder: Path, **fields: Any) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 16}
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "vocab_size": 300, **sizes, **fields}))
    return folder


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
def test_absent_fields_have_the_defaults_of_transformers(family: str, tmp_path: Path) -> None:
    write(tmp_path, model_type=family, use_sliding_window=True)
    spec, theirs = read_spec(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert spec.num_kv_heads == theirs.num_key_value_heads
    assert spec.max_position_embeddings == theirs.max_position_embeddings
    assert (spec.rms_norm_epsilon, spec.rope.theta) == (theirs.rms_norm_eps, theirs.rope_parameters["rope_theta"])
    assert spec.sliding_window == theirs.sliding_window
    kinds = getattr(theirs, "layer_types", ["sliding_attention"] * 6)
    assert [spec.window(layer) is not None for layer in range(6)] == [kind == "sliding_attention" for kind in kinds]
    assert spec.experts is not None
    assert spec.experts.num_experts == theirs.num_experts
    assert spec.experts.num_per_token == theirs.num_experts_per_tok
    assert spec.experts.intermediate_size == theirs.moe_intermediate_size
    assert spec.experts.normalize == theirs.norm_topk_prob
    assert spec.experts.shared_intermediate_size == getattr(theirs, "shared_expert_intermediate_size", None)
    assert all(spec.has_experts(layer) for layer in range(6))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5; it must be an integer from 1 to 4"),
        ({"num_experts": 4}, "num_experts_per_tok is missing"),
        ({"num_experts": 10**9}, "num_experts is 1000000000"),
        ({"num_local_experts": -1}, "num_local_experts is -1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3; it must be a list of layers"),
        ({"mlp_only_layers": [[]]}, r"mlp_only_layers is \[\[\]\]"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size is 0"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1; it must be true or false"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_spec(write(tmp_path, **fields))
