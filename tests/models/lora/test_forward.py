"""Several adapters in one batch against transformers on the merged weights, on tiny random models in float32."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.generation import Pooling
from limelight.kernels.interface import Kernels
from limelight.models.checkpoint import Checkpoint
from limelight.models.lora.adapter_file import AdapterFile
from limelight.step import Chunk, Readout, SeatTaken, Step
from tests.models.lora.tiny_adapters import ATTENTION, MLP, merged, random_matrices, save_adapter, settings_of
from tests.models.sequences import GREEDY, Batch, Running
from tests.models.tiny_models import VOCAB_SIZE, Rig, c_kernels, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TOLERANCE = 1e-4
BASE = None


@dataclass
class World:
    """A base model with three adapters of different kinds: by id, the merged models in transformers."""

    checkpoint: Checkpoint
    folders: dict[int, Path]
    models: dict[int | None, Any]

    def rig(self, kernels: Kernels | None = None) -> Rig:
        rig = Rig(self.checkpoint, num_pages=96, kernels=kernels)
        for adapter, folder in self.folders.items():
            file = AdapterFile(folder, rig.adaptable, 64)
            rig.adapters[adapter] = file.read(torch.float32, "cpu")
        return rig

    def expected(self, adapter: int | None, tokens: list[int]) -> torch.Tensor:
        """[tokens, vocab] by transformers on the merged weights."""
        with torch.inference_mode():
            return self.models[adapter](torch.tensor([tokens])).logits[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("lora")
    base = tiny_llama()
    everywhere = random_matrices(base, (*ATTENTION, *MLP), 4, 1, {"k_proj": 2, "down_proj": 7})
    some_parts = random_matrices(base, ("q_proj", "v_proj", "up_proj"), 3, 2)
    head_too = random_matrices(base, ("o_proj", "lm_head"), 8, 3)
    folders = {
        7: save_adapter(
            folder / "everywhere",
            everywhere,
            settings_of(4, 6, "all-linear", rank_pattern={"k_proj": 2, "down_proj": 7}, alpha_pattern={"v_proj": 11}),
        ),
        8: save_adapter(folder / "some", some_parts, settings_of(3, 5, ["q_proj", "v_proj", "up_proj"])),
        12: save_adapter(folder / "head", head_too, settings_of(8, 3, ["o_proj", "lm_head"], use_rslora=True)),
    }
    models = {
        BASE: base,
        7: merged(base, everywhere, 6, alphas={"v_proj": 11}),
        8: merged(base, some_parts, 5),
        12: merged(base, head_too, 3, root_scaled=True),
    }
    return World(saved(base, folder / "base"), folders, models)


@pytest.fixture(scope="module", params=["in C", "torch"])
def kernels(request: pytest.FixtureRequest) -> Kernels | None:
    """Kernels of either kind, that record a pass once or compute each."""
    return c_kernels() if request.param == "in C" else None


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist()


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


def test_the_merged_models_differ(world: World) -> None:
    """Guards the comparisons below."""
    tokens = prompt(20, 0)
    seen = [world.expected(adapter, tokens)[-1] for adapter in world.models]
    for index, logits in enumerate(seen):
        assert not any(torch.allclose(logits, other, atol=0.05) for other in seen[:index])


def test_three_adapters_and_the_base_generate_as_the_merged_models_do_in_one_batch(
    world: World, kernels: Kernels | None
) -> None:
    rig = world.rig(kernels)
    batch = Batch(rig.executor, rig.capacity.page_size, range(96))
    sequences = {
        adapter: batch.sit(seat, prompt(11 + seat, seat), adapter=adapter) for seat, adapter in enumerate(world.models)
    }
    batch.step(*((sequence, sequence.num_prompt_tokens) for sequence in sequences.values()))
    for _ in range(63):
        batch.step(*((sequence, 1) for sequence in sequences.values()))
    for adapter, sequence in sequences.items():
        expected = world.expected(adapter, sequence.tokens[:-1])[sequence.num_prompt_tokens - 1 :]
        assert len(sequence.output) == 64
        assert sequence.output == expected.argmax(-1).tolist()


@settings(max_examples=25)
@given(drawn=st.data())
def test_any_mixture_of_adapters_in_any_cut_gives_the_logits_of_the_merged_models(
    world: World, kernels: Kernels | None, drawn: st.DataObject
) -> None:
    rig = world.rig(kernels)
    batch = Batch(rig.executor, rig.capacity.page_size, range(96))
    chosen = drawn.draw(st.lists(st.sampled_from([None, 7, 8, 12]), min_size=1, max_size=6))
    sequences = [
        batch.sit(seat, prompt(drawn.draw(st.integers(1, 20)), seat), adapter=adapter)
        for seat, adapter in enumerate(chosen)
    ]
    logits: dict[int, list[torch.Tensor]] = {sequence.seat: [] for sequence in sequences}
    while unfinished := [sequence for sequence in sequences if len(sequence.output) < 3]:
        served = drawn.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique_by=id))
        sizes = [drawn.draw(st.integers(1, len(sequence.tokens) - sequence.num_computed)) for sequence in served]
        drawing = batch.step(*zip(served, sizes, strict=True))
        for row, sequence in zip(rig.logits, drawing, strict=True):
            logits[sequence.seat].append(row)
    for adapter, sequence in zip(chosen, sequences, strict=True):
        expected = world.expected(adapter, sequence.tokens[:-1])[sequence.num_prompt_tokens - 1 :]
        assert_same(torch.stack(logits[sequence.seat]), expected)


def test_a_seat_forgets_the_adapter_of_its_last_tenant(world: World, kernels: Kernels | None) -> None:
    rig = world.rig(kernels)
    batch = Batch(rig.executor, rig.capacity.page_size, range(96))
    first = batch.sit(2, prompt(9, 1), adapter=7)
    batch.step((first, 9))
    batch.leave(first)
    second = batch.sit(2, prompt(9, 2))
    batch.step((second, 9))
    assert_same(rig.logits, world.expected(BASE, second.tokens[:-1])[-1:])


def test_a_step_without_adapters_never_asks_the_kernels_for_low_rank_products(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = world.rig()
    calls: list[int] = []
    kernels = rig.executor._sampler._kernels
    plain = type(kernels).add_low_rank

    def counting(self: Any, outputs: torch.Tensor, inputs: torch.Tensor, additions: Any) -> None:
        calls.append(len(additions))
        plain(self, outputs, inputs, additions)

    monkeypatch.setattr(type(kernels), "add_low_rank", counting)
    batch = Batch(rig.executor, rig.capacity.page_size, range(96))
    base, adapted = batch.sit(0, prompt(9, 1)), batch.sit(1, prompt(9, 1), adapter=8)
    batch.step((base, 9))
    assert calls == []
    batch.step((base, 1), (adapted, 9))
    assert calls == [1] * 4  # qkv and gate-up of two layers; the other two adapters are not in this batch


def test_adapters_come_and_go_while_a_sequence_of_the_base_goes_on(world: World, kernels: Kernels | None) -> None:
    """One takes the place and the number of another one."""
    rig = world.rig(kernels)
    batch = Batch(rig.executor, rig.capacity.page_size, range(96))
    base = batch.sit(0, prompt(9, 1))
    batch.step((base, 9))
    loaded = dict(rig.adapters)
    rig.adapters.clear()
    for adapter in (8, 12, 7, 8):
        rig.adapters[5] = loaded[adapter]
        adapted = batch.sit(1, prompt(9, adapter), adapter=5)
        batch.step((base, 1), (adapted, 9))
        assert_same(rig.logits[1:], world.expected(adapter, adapted.tokens[:-1])[-1:])
        batch.leave(adapted)
        batch.step((base, 1))
        del rig.adapters[5]
    assert base.output == world.expected(BASE, base.tokens[:-1])[8:].argmax(-1).tolist()


def test_a_sequence_with_an_adapter_that_is_not_loaded_fails_its_step(world: World, kernels: Kernels | None) -> None:
    rig = world.rig(kernels)
    batch = Batch(rig.executor, rig.capacity.page_size, range(96))
    stranger: Running = batch.sit(0, prompt(5, 1), adapter=99)
    with pytest.raises(ValueError, match=r"adapter 99.*\[7, 8, 12\]"):
        batch.step((stranger, 5))


def test_scores_and_hidden_states_are_those_of_the_merged_models(world: World, kernels: Kernels | None) -> None:
    """One of the adapters changes the head."""
    rig = world.rig(kernels)
    taken, chunks, prompts = [], [], []
    for seat, adapter in enumerate(world.models):
        tokens = prompt(30, seat)
        readout = Readout(next_token_ids=tuple(tokens[1:]), pooling=Pooling.LAST)
        prompts.append(tokens)
        taken.append(SeatTaken(seat=seat, sampling=GREEDY, num_prompt_tokens=30, adapter=adapter))
        pages = tuple(range(4 * seat, 4 * seat + 4))
        chunks.append(
            Chunk(seat=seat, start=0, num_tokens=30, token_ids=tuple(tokens), new_pages=pages, readout=readout)
        )
    results = rig.executor.submit(Step(number=0, chunks=tuple(chunks), taken=tuple(taken)))()
    for adapter, tokens, result in zip(world.models, prompts, results, strict=True):
        assert result is not None
        logprobs = world.expected(adapter, tokens).log_softmax(-1)
        expected = logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        assert_same(torch.tensor([score.logprob for score in result.scores]), expected)
        with torch.inference_mode():
            states = world.models[adapter].model(torch.tensor([tokens])).last_hidden_state[0, -1]
        torch.testing.assert_close(
            torch.frombuffer(bytearray(result.hidden), dtype=torch.float32), states, atol=1e-3, rtol=1e-3
        )
