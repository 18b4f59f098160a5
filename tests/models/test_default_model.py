"""The embedded default model, loaded as an engine loads it but with torch's operations, against transformers over the
same dequantised weights. `test_packed_models.py` compares the kernels in C with these.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from limelight.config import EngineConfig
from limelight.models.checkpoint import open_checkpoint
from limelight.models.hub import embedded_model
from limelight.models.loaded_model import LoadedModel
from limelight.models.loading import load_model
from limelight.step import SeatSampling
from tests.models.greedy import PROMPTS, assert_greedy_tokens
from tests.models.sequences import Batch

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
OWN_PROMPTS = [
    CHAT.format("What is the boiling point of water?"),
    CHAT.format("Write a haiku about rain."),
    "The quick brown fox jumps over the lazy dog. " * 12,
]


@pytest.fixture(scope="module")
def loaded(one_torch_thread: None) -> Iterator[LoadedModel]:
    if embedded_model() is None:
        pytest.skip("the package with the default model is not installed")
    model = load_model(
        EngineConfig(kv_cache_bytes=2**28, max_model_len=1024, cpu_kernels="reference"), lambda what, fraction: None
    )
    yield model
    model.executor.close()


@pytest.fixture(scope="module")
def transformers_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    path = embedded_model()
    assert path is not None
    checkpoint = open_checkpoint(path)
    spec = checkpoint.spec
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=spec.num_heads,
            num_key_value_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            max_position_embeddings=spec.max_position_embeddings,
            rms_norm_eps=spec.rms_norm_epsilon,
            rope_theta=spec.rope.theta,
            tie_word_embeddings=spec.tie_word_embeddings,
        )
    )
    state = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    return model.eval()


def test_greedy_tokens_are_those_of_transformers(loaded: LoadedModel, transformers_model: Any) -> None:
    assert_greedy_tokens(loaded, transformers_model, PROMPTS + OWN_PROMPTS)


def test_a_seeded_sequence_draws_the_same_alone_and_among_others(loaded: LoadedModel) -> None:
    def run(seats: list[int], others: int) -> list[int]:
        batch = Batch(loaded.executor, loaded.capacity.page_size, range(loaded.capacity.num_pages))
        sampling = SeatSampling(temperature=0.9, top_p=0.9, seed=77)
        prompt = loaded.vocabulary.encode("The weather today is", add_special_tokens=True)
        sequences = [batch.sit(seats[0], prompt, sampling)]
        sequences += [
            batch.sit(seat, prompt[:2], SeatSampling(temperature=1.0, top_k=40, seed=seat)) for seat in seats[1:]
        ]
        batch.step(*((sequence, sequence.num_prompt_tokens) for sequence in sequences))
        for _ in range(24):
            batch.step(*((sequence, 1) for sequence in sequences))
        assert len(sequences) == others + 1
        return sequences[0].output

    alone = run([9], 0)
    assert run([0, 1, 2, 3], 3) == alone
    assert run([5, 8], 1) == alone


def test_the_default_model_answers_greedily_unless_told_otherwise(loaded: LoadedModel) -> None:
    assert loaded.defaults.params().greedy
    assert loaded.defaults.params().max_tokens is None


def test_the_default_model_is_loaded_whole(loaded: LoadedModel) -> None:
    assert loaded.name == "SmolLM2-135M-Instruct"
    assert loaded.capacity.vocab_size == 49152
    assert loaded.capacity.max_model_len == 1024
    assert loaded.capacity.num_pages * loaded.capacity.page_size * 2 * 30 * 3 * 64 * 4 <= 2**28
    (end,) = loaded.vocabulary.encode("<|im_end|>", add_special_tokens=False)
    assert loaded.eos_token_ids == {end}
    assert "weights" in loaded.memory_plan
