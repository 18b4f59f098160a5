"""The Phi family against transformers, on tiny random weights in float32."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Phi3Config

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
    assert_agrees(model, saved(model, tmp_path))


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
