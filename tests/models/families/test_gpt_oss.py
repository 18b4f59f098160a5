"""gpt-oss against transformers, on tiny random weights in float32."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, GptOssConfig

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.kernels.reference import ReferenceKernels
from limelight.models.decoder import weights_bytes
from limelight.models.hf_config import read_spec
from limelight.models.spec import RopeScaling
from tests.models.families.agreement import assert_agrees, assert_all_differ, assert_same_logits_in_chunks
from tests.models.tiny_models import saved, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
    "rope_theta": 1000.0,
}
PLAIN: dict[str, Any] = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "sliding_window": 9,
    "num_hidden_layers": 3,
    "rope_parameters": YARN,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "narrow clamp": {"swiglu_limit": 0.5},
    "other epsilon": {"rms_norm_eps": 1e-2},
    "layer types": {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    "one expert of each token": {"num_experts_per_tok": 1},
    "all experts": {"num_experts_per_tok": 5},
    "no attention biases": {"attention_bias": False},
    "odd sizes": {"hidden_size": 36, "intermediate_size": 7},
    "truncated yarn": {"rope_parameters": {**YARN, "truncate": True, "beta_fast": 3.0}},
    "plain rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
}


@pytest.mark.parametrize("tied", [False, True])
def test_models_agree_with_transformers(tied: bool, tmp_path: Path) -> None:
    model = tiny_model(GptOssConfig, **PLAIN, tie_word_embeddings=tied)
    assert_agrees(model, saved(model, tmp_path))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_mean_what_they_mean_to_transformers(name: str, tmp_path: Path) -> None:
    model = tiny_model(GptOssConfig, **{**PLAIN, **SETTINGS[name]})
    model.set_experts_implementation("eager")  # the other one refuses odd sizes
    assert_same_logits_in_chunks(model, saved(model, tmp_path))


def test_every_setting_reaches_the_logits() -> None:
    same_shapes = [options for name, options in SETTINGS.items() if name not in ("odd sizes", "no attention biases")]
    models = [
        tiny_model(GptOssConfig, **{**PLAIN, **options}) for options in ({}, {"sliding_window": 12}, *same_shapes)
    ]
    without_sinks, without_router_bias = tiny_model(GptOssConfig, **PLAIN), tiny_model(GptOssConfig, **PLAIN)
    for layer in without_sinks.model.layers:
        layer.self_attn.sinks.data.fill_(-torch.inf)
    for layer in without_router_bias.model.layers:
        layer.mlp.router.bias.data.zero_()
    assert_all_differ([*models, without_sinks, without_router_bias])


def test_strong_sinks_take_most_of_the_attention(tmp_path: Path) -> None:
    model = tiny_model(GptOssConfig, **PLAIN)
    for layer in model.model.layers:
        layer.self_attn.sinks.data.add_(6.0)
    assert_same_logits_in_chunks(model, saved(model, tmp_path))


def test_weights_in_bytes_count_experts_biases_and_sinks(tmp_path: Path) -> None:
    model = tiny_model(GptOssConfig, **PLAIN)
    spec = saved(model, tmp_path).spec
    assert weights_bytes(spec, ReferenceKernels("cpu"), "float32") == sum(4 * p.numel() for p in model.parameters())


def write(folder: Path, **fields: Any) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 16}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "vocab_size": 300, **sizes, **fields}))
    return folder


def test_absent_fields_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    spec, theirs = read_spec(write(tmp_path)), AutoConfig.from_pretrained(tmp_path)
    rope = theirs.rope_parameters
    assert (spec.num_kv_heads, spec.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert (spec.max_position_embeddings, spec.rms_norm_epsilon) == (
        theirs.max_position_embeddings,
        theirs.rms_norm_eps,
    )
    assert (spec.rope.scaling, spec.rope.theta) == (RopeScaling.YARN, rope["rope_theta"])
    assert (spec.rope.factor, spec.rope.truncate) == (rope["factor"], rope["truncate"])
    assert spec.rope.original_max_position_embeddings == rope["original_max_position_embeddings"]
    assert [spec.window(layer) for layer in range(3)] == [128, None, 128]
    assert theirs.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    assert (spec.gate_limit, spec.qkv_bias, spec.output_bias) == (theirs.swiglu_limit, True, True)
    assert spec.experts is not None
    assert spec.experts.num_experts == theirs.num_local_experts
    assert spec.experts.num_per_token == theirs.num_experts_per_tok
    assert spec.eos_token_ids == frozenset()


def test_another_slope_of_the_gate_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"swiglu_alpha is 1\.0; Limelight runs 1\.702"):
        read_spec(write(tmp_path, swiglu_alpha=1.0))


def test_an_impossible_number_of_experts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_local_experts is 100000; it must be an integer from 1 to 4096"):
        read_spec(write(tmp_path, num_local_experts=100_000))


def test_mxfp4_is_a_way_to_store_gpt_oss_and_nothing_else(tmp_path: Path) -> None:
    method = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    assert read_spec(write(tmp_path, **method)).architecture == "gpt_oss"
    with pytest.raises(UnsupportedModel, match="quantised with 'mxfp4'"):
        read_spec(write(tmp_path, model_type="llama", **method))
