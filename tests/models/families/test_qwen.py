"""The Qwen family against transformers, on tiny random weights in float32."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen3Config

from limelight.errors import CheckpointError
from limelight.models.hf_config import read_spec
from tests.models.families.agreement import assert_agrees, assert_all_differ, assert_same_logits_in_chunks
from tests.models.tiny_models import saved, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000.0}

WHOLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2": (Qwen2Config, {}),
    "qwen2, tied, sliding": (Qwen2Config, {"tie_word_embeddings": True, **WINDOW}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "qwen3, tied, sliding": (Qwen3Config, {"head_dim": 12, "tie_word_embeddings": True, **WINDOW}),
}
SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one kv head": (Qwen2Config, {"num_key_value_heads": 1}),
    "window not in use": (Qwen2Config, {**WINDOW, "use_sliding_window": False}),
    "window from a later layer": (Qwen2Config, {**WINDOW, "max_window_layers": 2}),
    "layer types": (Qwen2Config, {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "qwen2 yarn": (Qwen2Config, {"rope_parameters": YARN}),
    "default head size": (Qwen3Config, {"hidden_size": 16}),
    "attention biases": (Qwen3Config, {"head_dim": 16, "attention_bias": True}),
    "epsilon": (Qwen3Config, {"head_dim": 16, "rms_norm_eps": 1e-2}),
    "qwen3 yarn": (Qwen3Config, {"head_dim": 16, "rope_parameters": YARN}),
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
    assert_same_logits_in_chunks(model, saved(model, tmp_path))


def test_every_setting_of_the_window_reaches_the_logits() -> None:
    variants: list[dict[str, Any]] = [
        {},
        WINDOW,
        {**WINDOW, "max_window_layers": 0},
        {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
        {"rope_parameters": YARN},
    ]
    assert_all_differ([tiny_model(Qwen2Config, **variant) for variant in variants])


def write(folder: Path, **fields: Any) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 32}
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 300, **sizes, **fields}))
    return folder


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_absent_fields_have_the_defaults_of_transformers(family: str, tmp_path: Path) -> None:
    """A `config.json` as terse as possible, beside what transformers makes of it."""
    from transformers import AutoConfig

    write(tmp_path, model_type=family, use_sliding_window=True, max_window_layers=1)
    spec, theirs = read_spec(tmp_path), AutoConfig.from_pretrained(tmp_path)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert (spec.num_kv_heads, spec.head_dim) == (theirs.num_key_value_heads, head_dim)
    assert spec.max_position_embeddings == theirs.max_position_embeddings
    assert (spec.rms_norm_epsilon, spec.rope.theta) == (theirs.rms_norm_eps, theirs.rope_parameters["rope_theta"])
    assert (spec.eos_token_ids, spec.bos_token_id) == (frozenset(), None)
    assert theirs.eos_token_id is None
    assert theirs.bos_token_id is None
    assert spec.tie_word_embeddings == theirs.tie_word_embeddings
    assert spec.sliding_window == theirs.sliding_window == 4096
    assert [spec.window(layer) is not None for layer in range(3)] == [
        kind == "sliding_attention" for kind in theirs.layer_types
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types is .*; it must be a list of 3 entries"),
        ({"layer_types": ["full_attention", "full_attention", "hybrid"]}, r"layer_types\[2\] is 'hybrid'"),
        ({"use_sliding_window": "yes"}, "use_sliding_window is 'yes'; it must be true or false"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window is 0"),
        ({"max_window_layers": -1}, "max_window_layers is -1"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_spec(write(tmp_path, **fields))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"])
def test_a_context_that_needs_dual_chunk_attention_ends_where_plain_attention_was_trained(
    family: str, tmp_path: Path
) -> None:
    chunks = {"chunk_size": 262_144, "local_size": 8192, "original_max_position_embeddings": 262_144}
    write(tmp_path, model_type=family, max_position_embeddings=1_010_000, dual_chunk_attention_config=chunks)
    spec = read_spec(tmp_path)
    assert spec.longest_context == spec.max_position_embeddings == 262_144
    assert "262,144 tokens instead of 1,010,000" in spec.notes[0]
    write(tmp_path, model_type=family, max_position_embeddings=32_768, dual_chunk_attention_config=chunks)
    assert read_spec(tmp_path).notes == ()
