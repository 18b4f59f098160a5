"""Whatever a `config.json` says: a specification whose tables can be made, or an error that names the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import ModelError
from limelight.models.hf_config import read_spec
from limelight.models.rope import rope_tables
from limelight.models.spec import ModelSpec

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 200,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma": {"model_type": "gemma", **SIZES},
    "gemma2": {"model_type": "gemma2", **SIZES},
    "gemma3_text": {"model_type": "gemma3_text", **SIZES},
    "gemma3": {"model_type": "gemma3", "text_config": SIZES},
    "phi3": {"model_type": "phi3", **SIZES, "original_max_position_embeddings": 64},
    "qwen2": {"model_type": "qwen2", **SIZES, "use_sliding_window": True},
    "qwen3": {"model_type": "qwen3", **SIZES, "use_sliding_window": True},
    "qwen2_moe": {"model_type": "qwen2_moe", **SIZES, "use_sliding_window": True},
    "qwen3_moe": {"model_type": "qwen3_moe", **SIZES},
    "gpt_oss": {"model_type": "gpt_oss", **SIZES},
}
NUMBERS = st.integers(-(10**40), 10**40) | st.floats() | st.sampled_from([0, 1, 2, 4, 0.5, 8.0])
LONG = "x" * 5000
ANYTHING = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=3)
    | st.lists(NUMBERS, max_size=3)
    | st.sampled_from([LONG, [LONG] * 50, {LONG: LONG}])
)
FACTORS = st.lists(st.floats(0.5, 4.0) | NUMBERS, min_size=7, max_size=9)
ROPE = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "other"]),
        "type": st.sampled_from(["linear", "longrope"]) | ANYTHING,
        "rope_theta": NUMBERS,
        "factor": NUMBERS,
        "attention_factor": NUMBERS,
        "partial_rotary_factor": NUMBERS,
        "original_max_position_embeddings": NUMBERS,
        "low_freq_factor": NUMBERS,
        "high_freq_factor": NUMBERS,
        "short_factor": FACTORS | ANYTHING,
        "long_factor": FACTORS | NUMBERS,
    },
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "rope_scaling": ROPE | ANYTHING,
        "rope_parameters": ROPE
        | st.fixed_dictionaries({"full_attention": ROPE | ANYTHING, "sliding_attention": ROPE | ANYTHING}),
        "layer_types": st.lists(st.sampled_from(["full_attention", "sliding_attention"]), max_size=5) | ANYTHING,
        **dict.fromkeys(
            (
                "attn_logit_softcapping",
                "decoder_sparse_step",
                "final_logit_softcapping",
                "hidden_act",
                "hidden_activation",
                "max_window_layers",
                "mlp_only_layers",
                "moe_intermediate_size",
                "norm_topk_prob",
                "num_experts",
                "num_experts_per_tok",
                "num_local_experts",
                "original_max_position_embeddings",
                "partial_rotary_factor",
                "query_pre_attn_scalar",
                "rope_local_base_freq",
                "rope_theta",
                "shared_expert_intermediate_size",
                "sliding_window",
                "sliding_window_pattern",
                "swiglu_alpha",
                "swiglu_limit",
                "text_config",
                "use_bidirectional_attention",
                "use_sliding_window",
                "architectures",
            ),
            ANYTHING,
        ),
    },
)


@pytest.mark.parametrize("name", CONFIGS)
@given(changes=CHANGES, inside=st.booleans())
@settings(max_examples=60)
def test_any_values_give_a_specification_or_an_error_that_names_the_file(
    name: str, tmp_path: Path, changes: dict[str, Any], inside: bool
) -> None:
    config = CONFIGS[name]
    if "text_config" in config and inside:
        config = config | {"text_config": config["text_config"] | changes}
    else:
        config = config | changes
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    try:
        spec = read_spec(tmp_path)
    except ModelError as error:
        message = str(error)
    else:
        message = str(path)
        assert_usable(spec)
    assert str(path) in message
    assert len(message) < len(str(path)) + 800


def assert_usable(spec: ModelSpec) -> None:
    for rope in (spec.rope, spec.local_rope):
        if rope is not None:
            for table in rope_tables(rope, 80, spec.max_position_embeddings):
                assert table.shape == (80, rope.rotary_dim // 2)
                assert np.isfinite(table).all()
    assert spec.longest_context >= 1
    assert all(window is None or window >= 1 for window in map(spec.window, range(spec.num_layers)))
    assert spec.scale > 0.0
    if spec.experts is not None:
        assert 1 <= spec.experts.num_per_token <= spec.experts.num_experts
