"""The whole engine on a tiny model with real adapters, against transformers on the merged weights."""

import gc
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPTNeoXConfig

from limelight.engine import Engine
from limelight.errors import UnsupportedModel
from limelight.generation import SamplingParams
from limelight.models.lora.adapter_table import AdapterTable
from tests.models.lora.tiny_adapters import ATTENTION, MLP, merged, random_matrices, save_adapter, settings_of
from tests.models.tiny_models import tiny_llama, tiny_model

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_torch_thread")]
GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)


class World(NamedTuple):
    """A base model and three adapters as folders; the merged models in transformers."""

    base: str
    folders: dict[str, str]
    models: dict[str | None, Any]

    def assert_greedy(self, adapter: str | None, prompt: list[int], output: tuple[int, ...]) -> None:
        tokens = [*prompt, *output]
        with torch.inference_mode():
            logits = self.models[adapter](torch.tensor([tokens[:-1]])).logits[0]
        assert list(output) == logits[len(prompt) - 1 :].argmax(-1).tolist()


def save_tokenizer(folder: Path) -> None:
    """One token per byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    base = tiny_llama(vocab_size=256, max_position_embeddings=256)
    base.save_pretrained(folder / "base")
    save_tokenizer(folder / "base")
    targets = {"first": (*ATTENTION, *MLP), "second": ("q_proj", "v_proj"), "third": MLP}
    folders, merged_models = {}, {None: base}
    for number, (name, endings) in enumerate(targets.items(), start=2):
        matrices = random_matrices(base, endings, number, number)
        folders[name] = str(save_adapter(folder / name, matrices, settings_of(number, 5, list(endings))))
        merged_models[name] = merged(base, matrices, 5)
    return World(str(folder / "base"), folders, merged_models)


def engine_of(world: World, **options: Any) -> Engine:
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "kv_cache_bytes": 2**20,
        "page_size": 8,
        "max_num_batched_tokens": 64,
        **options,
    }
    return Engine(world.base, **settings)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_pages", [256, 40])
async def test_a_mixed_batch_gives_what_the_merged_models_give(world: World, depth: int, num_pages: int) -> None:
    """Long prompts (chunks of them in several steps), equal for all adapters; with few pages, preempted."""
    page_bytes = 2 * 2 * 8 * 2 * 8 * 4
    options = {"kv_cache_bytes": num_pages * page_bytes, "max_num_seqs": 8, "pipeline_depth": depth}
    prompt = [(7 * index * index + 3) % 256 for index in range(90)]
    async with engine_of(world, adapters=world.folders, **options) as engine:
        outputs = {}

        async def ask(adapter: str | None, round_number: int) -> None:
            generation = await engine.generate(prompt, GREEDY, adapter=adapter)
            outputs[adapter, round_number] = generation.outputs[0].token_ids

        for round_number in range(2):
            async with anyio.create_task_group() as group:
                for adapter in world.models:
                    group.start_soon(ask, adapter, round_number)
        statistics = engine.statistics()
    for (adapter, _), output in outputs.items():
        assert len(output) == 64
        world.assert_greedy(adapter, prompt, output)
    assert (statistics.num_preemptions > 0) == (num_pages == 40)
    if num_pages == 256:
        assert statistics.prefix_hits_tokens == 4 * 88  # the second round, each from its own pages


async def test_memory_is_free_when_an_unload_returns(world: World) -> None:
    async with engine_of(world) as engine:
        described = await engine.load_adapter("first", world.folders["first"])
        table = engine.model.adapters
        assert isinstance(table, AdapterTable)
        tensors = [weakref.ref(product.down) for product in table.weights[1].products.values()]
        assert described.num_bytes > 0
        assert described.rank == 2
        prompt = list(b"some prompt")
        async with anyio.create_task_group() as group, engine.stream(prompt, GREEDY, adapter="first") as stream:
            await stream.next_deltas()
            group.start_soon(engine.unload_adapter, "first")
            group.start_soon(engine.load_adapter, "second", world.folders["second"])
            generation = await stream.result()
        world.assert_greedy("first", prompt, generation.outputs[0].token_ids)
        gc.collect()
        assert {tensor() for tensor in tensors} == {None}
        assert [adapter.name for adapter in engine.adapters] == ["second"]
        again = await engine.generate(prompt, GREEDY, adapter="second")
        world.assert_greedy("second", prompt, again.outputs[0].token_ids)


async def test_the_rank_limit_is_the_engines(world: World) -> None:
    async with engine_of(world, max_lora_rank=3) as engine:
        await engine.load_adapter("second", world.folders["second"])
        with pytest.raises(UnsupportedModel, match="max_lora_rank"):
            await engine.load_adapter("third", world.folders["third"])


async def test_guesses_of_speculative_decoding_keep_their_adapter(world: World) -> None:
    prompt = [1, 2, 3, 4, 5, 6] * 8
    async with engine_of(world, adapters=world.folders, num_speculative_tokens=4) as engine:
        async with anyio.create_task_group() as group:

            async def ask(adapter: str | None) -> None:
                generation = await engine.generate(prompt, GREEDY, adapter=adapter)
                world.assert_greedy(adapter, prompt, generation.outputs[0].token_ids)

            for adapter in world.models:
                group.start_soon(ask, adapter)
        assert engine.statistics().num_draft_tokens > 0


async def test_a_model_on_the_layers_of_transformers_refuses_adapters(world: World, tmp_path: Path) -> None:
    tiny_model(GPTNeoXConfig, vocab_size=256, max_position_embeddings=64).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    async with Engine(str(tmp_path), device="cpu", kv_cache_bytes=2**20, max_num_batched_tokens=64) as engine:
        with pytest.raises(UnsupportedModel, match="takes no LoRA adapters"):
            await engine.load_adapter("first", world.folders["first"])
        assert len((await engine.generate([1, 2, 3], GREEDY)).outputs[0].token_ids) > 0
