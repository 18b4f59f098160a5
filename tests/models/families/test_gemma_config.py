"""What `config.json` says of Gemma models, in the layouts of transformers 4 and 5."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.hf_config import read_spec
from limelight.models.rope import rope_tables
from limelight.models.spec import ModelSpec

GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 200,
}
GEMMA3 = GEMMA2 | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 8,
    "head_dim": 32,
}
LINEAR = {"rope_type": "linear", "factor": 8.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


def spec_of(folder: Path, config: dict[str, Any], **changes: Any) -> ModelSpec:
    """What Limelight reads; a change to `...` leaves the field out."""
    values = {name: value for name, value in (config | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    return read_spec(folder)


ROPES: dict[str, dict[str, Any]] = {
    "silent": {},
    "plain, old": {"rope_theta": 500_000.0, "rope_local_base_freq": 5000.0},
    "scaled, old": {"rope_theta": 500_000.0, "rope_scaling": LINEAR},
    "not scaled, old": {"rope_theta": 500_000.0, "rope_scaling": None},
    "nested": {
        "rope_parameters": {
            "full_attention": LINEAR | {"rope_theta": 300_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
        }
    },
    "nested, both scaled": {
        "rope_parameters": {
            "full_attention": LLAMA3 | {"rope_theta": 300_000.0},
            "sliding_attention": LINEAR | {"rope_theta": 3000.0},
        }
    },
    "nested, one silent": {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": None}},
    "nested, the other silent": {"rope_parameters": {"sliding_attention": {"rope_theta": 77.0}}},
    "nested and old": {"rope_parameters": {"full_attention": {"rope_theta": 7e5}}, "rope_scaling": LINEAR},
}


@pytest.mark.parametrize("name", ROPES)
def test_both_ropes_of_gemma3_turn_as_in_transformers(name: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GEMMA3, **ROPES[name])
    config = AutoConfig.from_pretrained(tmp_path)
    rotary = Gemma3RotaryEmbedding(config)
    positions = torch.tensor([0, 100, 5000])
    assert spec.local_rope is not None
    for layer_type, rope in (("full_attention", spec.rope), ("sliding_attention", spec.local_rope)):
        theirs = rotary(torch.empty(1, dtype=torch.float32), positions.unsqueeze(0), layer_type)
        ours = rope_tables(rope, 5001, spec.max_position_embeddings)
        for our, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(
                torch.from_numpy(our[positions.numpy()]), their[0, :, : spec.head_dim // 2], atol=1e-5, rtol=0
            )


def test_the_older_key_of_a_scaling_means_the_same(tmp_path: Path) -> None:
    """transformers 5 overlooks it here, as a default stands under the newer key; transformers 4 did not."""
    older = spec_of(tmp_path, GEMMA3, rope_scaling={"type": "linear", "factor": 8.0})
    assert older == spec_of(tmp_path, GEMMA3, rope_scaling=LINEAR)
    assert older.rope.factor == 8.0


LAYERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma2": (GEMMA2, {}),
    "gemma2, listed": (GEMMA2, {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    "gemma3": (GEMMA3, {}),
    "gemma3, pattern": (GEMMA3, {"sliding_window_pattern": 3}),
    "gemma3, listed": (GEMMA3, {"layer_types": ["sliding_attention", "full_attention"] * 4}),
    "gemma3, listed and pattern": (
        GEMMA3,
        {"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window_pattern": 3},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("window", [{}, {"sliding_window": 512}])
def test_the_same_layers_slide_as_in_transformers(name: str, window: dict[str, int], tmp_path: Path) -> None:
    config, changes = LAYERS[name]
    spec = spec_of(tmp_path, config, **changes, **window)
    theirs = AutoConfig.from_pretrained(tmp_path)
    expected = [theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types]
    assert [spec.window(layer) for layer in range(spec.num_layers)] == expected


def test_silent_configurations_mean_what_transformers_assumes(tmp_path: Path) -> None:
    for config, scaled in ((GEMMA2, True), (GEMMA3 | {"head_dim": ...}, False)):
        spec = spec_of(tmp_path, config)
        theirs = AutoConfig.from_pretrained(tmp_path)
        assert (spec.head_dim, spec.num_kv_heads) == (theirs.head_dim, theirs.num_key_value_heads)
        assert spec.max_position_embeddings == theirs.max_position_embeddings
        assert (spec.attention_soft_cap, spec.logits_soft_cap) == ((50.0, 30.0) if scaled else (None, None))
        assert spec.scale == theirs.query_pre_attn_scalar**-0.5
        assert (spec.eos_token_ids, spec.bos_token_id) == ({theirs.eos_token_id}, theirs.bos_token_id)
        assert (spec.activation, spec.tie_word_embeddings, spec.norm_offset) == ("gelu_tanh", True, 1.0)
        assert spec.embedding_scale == 8.0


def test_a_linear_stretch_is_counted_in_the_context_of_gemma3(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GEMMA3, rope_scaling=LINEAR, max_position_embeddings=131_072)
    assert spec.longest_context == 131_072


def test_a_multimodal_configuration_may_leave_almost_everything_out(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "eos_token_id": [1, 106],
            "torch_dtype": "bfloat16",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"model_type": "siglip_vision_model"},
        },
    )
    theirs = AutoConfig.from_pretrained(tmp_path).get_text_config()
    for ours, name in (
        (spec.vocab_size, "vocab_size"),
        (spec.num_heads, "num_attention_heads"),
        (spec.num_kv_heads, "num_key_value_heads"),
        (spec.head_dim, "head_dim"),
        (spec.num_layers, "num_hidden_layers"),
        (spec.intermediate_size, "intermediate_size"),
        (spec.max_position_embeddings, "max_position_embeddings"),
    ):
        assert ours == getattr(theirs, name), name
    assert (spec.eos_token_ids, spec.bos_token_id, spec.dtype) == ({1, 106}, 2, "bfloat16")
    assert (spec.window(0), spec.window(5), spec.rope.factor) == (1024, None, 8.0)


@pytest.mark.parametrize(
    ("config", "changes", "error", "message"),
    [
        (
            GEMMA2,
            {"use_bidirectional_attention": True},
            UnsupportedModel,
            "use_bidirectional_attention is true; .*causal",
        ),
        (
            GEMMA3,
            {"use_bidirectional_attention": True},
            UnsupportedModel,
            "use_bidirectional_attention is true; .*causal",
        ),
        (
            GEMMA3,
            {"attn_logit_softcapping": 50.0},
            UnsupportedModel,
            "attn_logit_softcapping is 50.0; .*set it to null",
        ),
        (
            GEMMA2,
            {"attn_logit_softcapping": 0},
            CheckpointError,
            "attn_logit_softcapping is 0; it must be a number from",
        ),
        (GEMMA2, {"final_logit_softcapping": -1.0}, CheckpointError, "final_logit_softcapping is -1.0; it must be"),
        (GEMMA2, {"query_pre_attn_scalar": 0}, CheckpointError, "query_pre_attn_scalar is 0; it must be a number from"),
        (GEMMA2, {"hidden_activation": "relu"}, UnsupportedModel, "hidden_activation is 'relu'; Limelight runs"),
        (GEMMA2, {"layer_types": ["full_attention"]}, CheckpointError, "layer_types is .*; it must be a list of 4"),
        (
            GEMMA2,
            {"layer_types": ["x"] * 4},
            CheckpointError,
            r"layer_types\[0\] is 'x'; it must be sliding_attention or",
        ),
        (GEMMA2, {"layer_types": 3}, CheckpointError, "layer_types is 3; it must be a list of 4 entries"),
        (GEMMA2, {"sliding_window": 0}, CheckpointError, "sliding_window is 0; it must be an integer from 1"),
        (GEMMA2, {"sliding_window": None}, CheckpointError, "sliding_window is missing; it must be an integer from 1"),
        (GEMMA3, {"sliding_window_pattern": 0}, CheckpointError, "sliding_window_pattern is 0; it must be an integer"),
        (
            GEMMA3,
            {"rope_local_base_freq": 0.5},
            CheckpointError,
            "rope_local_base_freq is 0.5; it must be a number from 1",
        ),
        (GEMMA3, {"rope_parameters": 3}, CheckpointError, "rope_parameters is 3; it must be an object"),
        (
            GEMMA3,
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 0}}},
            CheckpointError,
            "rope_parameters: full_attention: factor is 0; it must be a number from 1",
        ),
        (GEMMA3, {"rope_parameters": {"sliding_attention": [1]}}, CheckpointError, "sliding_attention is .*an object"),
        (GEMMA3, {"architectures": ["Gemma3TextModel"]}, UnsupportedModel, "Limelight generates text"),
        (GEMMA3, {"model_type": "gemma3", "text_config": 3}, CheckpointError, "text_config is 3; it must be an object"),
        (
            GEMMA3,
            {"model_type": "gemma3", "text_config": {"hidden_size": "a"}},
            CheckpointError,
            "text_config: hidden_size is 'a'; it must be an integer",
        ),
    ],
)
def test_what_cannot_be_run_is_named_with_its_file(
    config: dict[str, Any], changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=f"config.json: .*{message}"):
        spec_of(tmp_path, config, **changes)
