"""The Phi family against transformers, on tiny random weights in float32."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.hf_config import read_spec
from limelight.models.rope import rope_tables
from limelight.models.spec import ModelSpec, RopeScaling
from tests.models.families.agreement import (
    assert_agrees,
    assert_all_differ,
    assert_same_logits,
    assert_same_logits_in_chunks,
    logits_of,
    prompt_of,
)
from tests.models.sequences import Batch
from tests.models.tiny_models import Rig, saved, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TINY: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "hidden_size": 48, "num_attention_heads": 4}
SHORT = [1.0, 1.1, 1.3, 1.7, 2.0, 2.2]
LONG = [1.0, 1.5, 2.5, 4.0, 8.0, 16.0]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}


def tiny_phi(**settings: Any) -> Any:
    return tiny_model(Phi3Config, **{**TINY, **settings})


def longrope(original: int, **changes: Any) -> dict[str, Any]:
    return {"rope_scaling": {**LONGROPE, **changes}, "original_max_position_embeddings": original}


MODELS = {
    "plain": {},
    "all heads": {"num_key_value_heads": 4},
    "sliding window": {"sliding_window": 9},
    "window beyond the prompt": {"sliding_window": 200},
    "partial rotary": {"partial_rotary_factor": 0.5},
    "tied head": {"tie_word_embeddings": True},
    "long context, short factors": longrope(128),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    model = tiny_phi(**MODELS[name])
    if name in ("plain", "sliding window", "partial rotary"):
        assert_agrees(model, saved(model, tmp_path))
    else:
        assert_same_logits_in_chunks(model, saved(model, tmp_path))


@pytest.mark.parametrize(
    "settings",
    [
        longrope(16),
        longrope(16, attention_factor=0.8),
        longrope(16, factor=3.0),
        {**longrope(16), "partial_rotary_factor": 0.75, "hidden_size": 64},
    ],
)
def test_beyond_the_original_context_all_positions_use_the_long_factors(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """transformers does so for prompts that are longer; these are, from the first logits that are compared."""
    model = tiny_phi(**settings)
    assert_same_logits_in_chunks(model, saved(model, tmp_path))


def test_a_short_prompt_is_rotated_by_the_factors_of_the_context_that_is_served(tmp_path: Path) -> None:
    model = tiny_phi(**longrope(32))
    checkpoint = saved(model, tmp_path)
    prompt = prompt_of(20)
    logits = []
    for served in (32, 33):
        rig = Rig(checkpoint, max_model_len=served)
        batch = Batch(rig.executor, rig.capacity.page_size, range(64))
        batch.step((batch.sit(0, prompt), 20))
        logits.append(rig.logits)
    long_only = tiny_phi(**longrope(32, short_factor=LONG))
    assert_same_logits(logits[0], logits_of(model, prompt)[-1:])
    assert_same_logits(logits[1], logits_of(long_only, prompt)[-1:])
    assert (logits[0] - logits[1]).abs().max() > 0.01


def test_every_setting_reaches_the_logits() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"sliding_window": 9},
        {"partial_rotary_factor": 0.5},
        {"rope_theta": 100.0},
        longrope(16),
        longrope(128),
        longrope(16, attention_factor=0.8),
    ]
    assert_all_differ([tiny_phi(**change) for change in settings])


PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 200,
    "max_position_embeddings": 8192,
}


def spec_of(folder: Path, **changes: Any) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(PHI3 | changes))
    return read_spec(folder)


ROPES: dict[str, dict[str, Any]] = {
    "plain": {"rope_theta": 500.0},
    "old": longrope(4096),
    "old, one kind of key": longrope(4096, type="longrope") | {"rope_theta": 500.0},
    "yarn in name": {"rope_scaling": {**LONGROPE, "rope_type": "yarn"}, "original_max_position_embeddings": 4096},
    "never stretched": longrope(8192),
    "own factors": longrope(4096, factor=7.0),
    "own attention factor": longrope(4096, attention_factor=1.5),
    "partial": longrope(4096) | {"hidden_size": 64, "partial_rotary_factor": 0.75},
    "new": {
        "rope_parameters": {**LONGROPE, "rope_theta": 500.0, "partial_rotary_factor": 0.75},
        "original_max_position_embeddings": 4096,
        "hidden_size": 64,
    },
}


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("served", [101, 5001])
def test_heads_turn_as_in_transformers(name: str, served: int, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, **ROPES[name])
    rotary = Phi3RotaryEmbedding(AutoConfig.from_pretrained(tmp_path))
    positions = torch.tensor([0, 100, served - 1])
    theirs = rotary(torch.empty(1, dtype=torch.float32), positions.unsqueeze(0))
    ours = rope_tables(spec.rope, served, spec.max_position_embeddings)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(our[positions.numpy()]), their[0, :, : spec.rope.rotary_dim // 2], atol=1e-5, rtol=0
        )


def test_the_first_name_of_longrope_means_the_same(tmp_path: Path) -> None:
    """Which transformers 5 does not read any more, and the first files on the hub have."""
    first = {"type": "su", "short_factor": SHORT, "long_factor": LONG}
    spec = spec_of(tmp_path, rope_scaling=first, original_max_position_embeddings=4096)
    assert spec == spec_of(tmp_path, **longrope(4096))


def test_longrope_counts_its_stretch_in_the_context(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, **longrope(4096, factor=100.0))
    assert (spec.rope.scaling, spec.longest_context) == (RopeScaling.LONGROPE, 8192)


def test_silent_configurations_mean_what_transformers_assumes(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, vocab_size=40_000)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert (spec.num_kv_heads, spec.sliding_window) == (theirs.num_key_value_heads, theirs.sliding_window)
    assert (spec.eos_token_ids, spec.bos_token_id) == ({theirs.eos_token_id}, theirs.bos_token_id)
    assert (spec.tie_word_embeddings, spec.activation, spec.rms_norm_epsilon) == (False, "silu", theirs.rms_norm_eps)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"rope_scaling": LONGROPE},
            CheckpointError,
            "original_max_position_embeddings is missing; it must be an integer",
        ),
        (longrope(1), CheckpointError, "original_max_position_embeddings is 1; it must be an integer from 2"),
        (longrope(64, short_factor=SHORT[:5]), CheckpointError, "short_factor has 5 entries; it must be a list of 6"),
        (longrope(64, long_factor=3.0), CheckpointError, "long_factor is 3.0; it must be a list of 6 numbers"),
        (longrope(64, long_factor=["a"] * 6), CheckpointError, r"long_factor\[0\] is 'a'; it must be a number"),
        (longrope(64, long_factor=[*LONG[:5], 0]), CheckpointError, r"long_factor\[5\] is 0; it must be a number from"),
        (longrope(64, factor=0), CheckpointError, "factor is 0; it must be a number from"),
        (longrope(64, attention_factor=0), CheckpointError, "attention_factor is 0; it must be a number from"),
        (
            {"partial_rotary_factor": 0.75},
            CheckpointError,
            "partial_rotary_factor is 0.75; it must leave an even number",
        ),
        ({"sliding_window": 0}, CheckpointError, "sliding_window is 0; it must be an integer from 1"),
        ({"hidden_act": "relu"}, UnsupportedModel, "hidden_act is 'relu'; Limelight runs"),
    ],
)
def test_what_cannot_be_run_is_named_with_its_file(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=f"config.json: .*{message}"):
        spec_of(tmp_path, **changes)
