"""Every family from a folder on disk to the tokens that the engine serves, against `generate` of transformers."""

from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from limelight.engine import Engine
from limelight.generation import Generation, SamplingParams
from limelight.models.families.registry import ARCHITECTURES
from limelight.models.kv_cache import kv_layout
from limelight.models.source import open_source
from limelight.telemetry.statistics import EngineStatistics
from tests.models.families.tiny_families import TINY_FAMILIES
from tests.models.tiny_models import save_byte_tokenizer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_torch_thread")]
NUM_TOKENS = 64
PAGE_SIZE = 8
NUM_PAGES = 30
"""A little more than two of the sequences below fill at their ends."""
PREFIX = "A preface to all of it: "
PROMPTS = [f"{PREFIX}{rest}" for rest in ("one", "two little words", "", "three, or any number", "five")]


def generated_by_transformers(model: Any, tokens: list[int]) -> tuple[int, ...]:
    prompt = torch.tensor([tokens])
    with torch.inference_mode():
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0
        )
    return tuple(output[0, len(tokens) :].tolist())


async def served(folder: Path, num_speculative_tokens: int) -> tuple[list[Generation], EngineStatistics]:
    """All prompts at once, in an engine too small for them; and what it counted."""
    outline = open_source(folder, "auto").outline
    page_bytes = kv_layout(outline, 1, PAGE_SIZE, "float32").page_bytes
    generations: dict[int, Generation] = {}
    async with Engine(
        model=str(folder),
        device="cpu",
        dtype="float32",
        page_size=PAGE_SIZE,
        kv_cache_bytes=NUM_PAGES * page_bytes,
        max_model_len=128,
        max_num_seqs=5,
        max_num_batched_tokens=11,
        num_speculative_tokens=num_speculative_tokens,
        prompt_lookup_min=1,
    ) as engine:

        async def ask(number: int) -> None:
            sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
            generations[number] = await engine.generate(PROMPTS[number], sampling)

        async with anyio.create_task_group() as tasks:
            for number in range(len(PROMPTS)):
                tasks.start_soon(ask, number)
        return [generations[number] for number in range(len(PROMPTS))], engine.statistics()


def test_every_architecture_is_compared() -> None:
    assert set(TINY_FAMILIES) == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_an_engine_serves_what_transformers_generates(architecture: str, tmp_path: Path) -> None:
    """Prompts longer than a step's budget, a shared prefix, and pages for fewer sequences than there are; then again
    with guesses beside all that."""
    model = TINY_FAMILIES[architecture](vocab_size=258)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    model.save_pretrained(tmp_path)
    save_byte_tokenizer(tmp_path)
    generations, statistics = await served(tmp_path, 0)
    assert statistics.num_preemptions > 0
    assert sum(generation.usage.cached_tokens > 0 for generation in generations) >= len(PROMPTS) - 1
    for generation in generations:
        tokens = list(generation.prompt_token_ids)
        assert generation.outputs[0].token_ids == generated_by_transformers(model, tokens), generation.prompt

    guessed, statistics = await served(tmp_path, 4)
    assert statistics.num_draft_tokens > 0
    assert [generation.outputs for generation in guessed] == [generation.outputs for generation in generations]
