"""Embeddings by the engine: transformers' hidden states on tiny random weights, alone and among generations."""

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
import torch

from limelight import SamplingParams
from limelight.engine import Engine
from limelight.errors import ContextLengthExceeded, InvalidRequest, UnsupportedField
from limelight.testing import scripted_engine, scripted_model
from tests.models.tiny_models import VOCAB_SIZE, save_byte_tokenizer, tiny_llama

pytestmark = pytest.mark.anyio
PROMPTS = [[5, 17, 80, 3], [3] * 50, list(range(90))]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama()


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path)
    save_byte_tokenizer(tmp_path)
    return tmp_path


def states(model: Any, prompt: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0].numpy()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


async def test_vectors_are_those_of_transformers(model: Any, folder: Path) -> None:
    async with Engine(str(folder), dtype="float32", max_num_batched_tokens=32) as engine:
        sampling = SamplingParams(max_tokens=8, temperature=0.0)
        alone = await engine.generate(PROMPTS[0], sampling)
        found: dict[int, Any] = {}

        async def embed(number: int) -> None:
            found[number] = await engine.embed(PROMPTS[number])

        async with anyio.create_task_group() as tasks:
            for number in range(len(PROMPTS)):
                tasks.start_soon(embed, number)
            beside = await engine.generate(PROMPTS[0], sampling)
        again = await engine.embed(PROMPTS[1])
    assert beside.outputs[0].token_ids == alone.outputs[0].token_ids
    for number, prompt in enumerate(PROMPTS):
        assert np.allclose(found[number].vector, unit(states(model, prompt)[-1]), atol=1e-4)
        assert found[number].usage.prompt_tokens == len(prompt)
        assert found[number].usage.completion_tokens == 0
    assert again.vector == found[1].vector, "to the last bit, from the prefix cache"
    assert again.usage.cached_tokens


async def test_the_folder_says_how_tokens_are_pooled(model: Any, folder: Path) -> None:
    (folder / "modules.json").write_text(json.dumps([{"type": "x.Transformer"}, {"type": "x.Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    async with Engine(str(folder), dtype="float32", max_num_batched_tokens=32) as engine:
        found = [await engine.embed(prompt) for prompt in (*PROMPTS, PROMPTS[2])]
    for prompt, embedding in zip((*PROMPTS, PROMPTS[2]), found, strict=True):
        assert np.allclose(embedding.vector, states(model, prompt).mean(0), atol=1e-4)
    assert found[3].usage.cached_tokens == 0, "every row is in the mean"


async def test_scores_reach_a_caller_in_python(model: Any, folder: Path) -> None:
    prompt = PROMPTS[2]
    async with Engine(str(folder), dtype="float32", max_num_batched_tokens=32) as engine:
        await engine.generate(prompt, SamplingParams(max_tokens=1))  # fills the prefix cache
        scored = await engine.generate(prompt, SamplingParams(max_tokens=0, prompt_logprobs=2, n=2))
    with torch.inference_mode():
        logprobs = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    assert scored.prompt_logprobs is not None
    first, *rest = scored.prompt_logprobs
    assert first is None
    assert [entry.token_id for entry in rest if entry] == prompt[1:]
    own = logprobs.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].numpy()
    assert np.allclose([entry.logprob for entry in rest if entry], own, atol=1e-4)
    assert all(entry is not None and len(entry.top) == 2 for entry in rest)
    assert [output.token_ids for output in scored.outputs] == [(), ()]
    assert max(prompt) < VOCAB_SIZE


async def test_what_cannot_be_embedded_is_refused() -> None:
    async with scripted_engine(max_model_len=64) as engine:
        assert (await engine.embed([1] * 64)).usage.prompt_tokens == 64, "no room is kept for an output"
        with pytest.raises(ContextLengthExceeded, match="context length is 64 tokens; shorten"):
            await engine.embed([1] * 65)
        with pytest.raises(InvalidRequest):
            await engine.embed([])
        with pytest.raises(InvalidRequest, match="dimensions"):
            await engine.embed("a", dimensions=9)


async def test_a_model_whose_rows_cannot_be_read_says_so() -> None:
    load = scripted_model()

    def unreadable(config: Any, report: Any) -> Any:
        return msgspec.structs.replace(load(config, report), unreadable="its layers are shut")

    async with Engine("scripted", loader=unreadable) as engine:
        with pytest.raises(UnsupportedField, match="its layers are shut"):
            await engine.embed("a")
        with pytest.raises(UnsupportedField, match="its layers are shut"):
            await engine.generate("a", SamplingParams(prompt_logprobs=1))
        assert (await engine.generate("a", SamplingParams(max_tokens=1))).text
