"""The Llama family against transformers, on tiny random weights in float32."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.sequences import Batch
from tests.models.tiny_models import VOCAB_SIZE, Rig, saved, tiny_llama, tiny_mistral

TOLERANCE = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 100.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000.0}


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] by transformers."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def assert_same_logits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


MODELS = {
    "plain": (tiny_llama, {"num_key_value_heads": 4}),
    "grouped heads": (tiny_llama, {}),
    "one kv head": (tiny_llama, {"num_key_value_heads": 1}),
    "tied head": (tiny_llama, {"tie_word_embeddings": True}),
    "biases": (tiny_llama, {"attention_bias": True, "mlp_bias": True}),
    "own head size": (tiny_llama, {"head_dim": 20}),
    "three layers": (tiny_llama, {"num_hidden_layers": 3, "rms_norm_eps": 1e-2}),
    "large theta": (tiny_llama, {"rope_theta": 500000.0}),
    "linear": (tiny_llama, {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "dynamic, within the trained context": (tiny_llama, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "llama3": (tiny_llama, {"rope_scaling": LLAMA3}),
    "yarn": (tiny_llama, {"rope_scaling": YARN}),
    "yarn, own attention factor": (tiny_llama, {"rope_scaling": {**YARN, "attention_factor": 0.7, "beta_fast": 8.0}}),
    "mistral": (tiny_mistral, {"sliding_window": None}),
    "mistral, sliding window": (tiny_mistral, {"sliding_window": 11}),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_agree_with_transformers(name: str, tmp_path: Path) -> None:
    make, options = MODELS[name]
    model = make(**options)
    rig = Rig(saved(model, tmp_path))
    batch = Batch(rig.executor, rig.capacity.page_size, range(64))
    prompt = prompt_of(45)
    sequence = batch.sit(3, prompt)
    batch.step((sequence, 17))
    batch.step((sequence, 28))
    assert_same_logits(rig.logits, logits_of(model, prompt)[-1:])
    for _ in range(9):  # across page borders
        batch.step((sequence, 1))
        assert_same_logits(rig.logits, logits_of(model, sequence.tokens[:-1])[-1:])
