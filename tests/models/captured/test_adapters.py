"""Adapters in captured executors: their steps run uncaptured, over rows that come through pinned memory."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from limelight.models.checkpoint import Checkpoint
from limelight.models.lora.adapter_file import AdapterFile
from limelight.step import Chunk, SeatTaken, Step
from tests.models.captured.rigs import CapturedRig, Drive, capacity_of, torch_executor
from tests.models.lora.tiny_adapters import ATTENTION, MLP, random_matrices, save_adapter, settings_of
from tests.models.sequences import GREEDY, Batch
from tests.models.tiny_models import saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PROMPT = (5, 17, 80, 3, 3, 41, 9)
ADAPTERS: tuple[int | None, ...] = (None, 7, 8, 7, None, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    model = tiny_llama()
    save_adapter(folder / "7", random_matrices(model, (*ATTENTION, *MLP), 4, 1), settings_of(4, 6, "all-linear"))
    head_too = random_matrices(model, ("o_proj", "lm_head"), 8, 3)
    save_adapter(folder / "8", head_too, settings_of(8, 30, ["o_proj", "lm_head"]))
    return saved(model, folder / "base")


def weights(rig: CapturedRig, folder: Path) -> dict[int, Any]:
    return {
        number: AdapterFile(folder / str(number), rig.adaptable, 64).read(torch.float32, "cpu") for number in (7, 8)
    }


def run(executor: Any) -> list[list[int]]:
    """Prefills and decodes of all adapters at once, then of one adapter alone, then of the base model alone."""
    batch = Batch(executor, 8, range(64))
    sequences = [
        batch.sit(seat, [*PROMPT, seat, *PROMPT[:seat]], adapter=adapter) for seat, adapter in enumerate(ADAPTERS)
    ]
    batch.step(*((sequence, 5) for sequence in sequences))
    batch.step(*((sequence, sequence.num_prompt_tokens - 5) for sequence in sequences))
    for _ in range(5):
        batch.step(*((sequence, 1) for sequence in sequences))
    for chosen in (7, None):
        for _ in range(5):
            batch.step(*((sequence, 1) for sequence, own in zip(sequences, ADAPTERS, strict=True) if own == chosen))
    return [sequence.output for sequence in sequences]


def test_adapters_draw_what_they_draw_through_torch(checkpoint: Checkpoint, folder: Path) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), seed=4)
    rig.adapters.update(weights(rig, folder))
    plain = torch_executor(checkpoint, rig.capacity)
    plain._adapters = rig.adapters
    outputs = run(rig.executor)
    assert outputs == run(plain)
    assert len({tuple(output[:6]) for output in outputs}) == len(outputs)
    calls = rig.device.calls
    assert calls.count("run _uncaptured_body") == 2 + 5 + 5
    assert sum(call.startswith("replay") for call in calls) == 2 * 5


def test_an_adapter_that_is_not_loaded_fails_its_step_and_changes_nothing(checkpoint: Checkpoint) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), captured=False)
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=7, adapter=3)
    chunk = Chunk(seat=0, start=0, num_tokens=7, token_ids=PROMPT, new_pages=(0,), sample=True)
    with pytest.raises(ValueError, match="adapter 3"):
        rig.executor.submit(Step(number=0, chunks=(chunk,), taken=(taken,)))
    with pytest.raises(ValueError, match="never taken"):
        rig.executor.submit(Step(number=1, chunks=(chunk,)))


def test_an_adapter_that_is_dropped_stays_until_the_steps_that_use_it_are_through(
    checkpoint: Checkpoint, folder: Path
) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint))
    rig.adapters.update(weights(rig, folder))
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=7, adapter=7)
    chunk = Chunk(seat=0, start=0, num_tokens=7, token_ids=PROMPT, new_pages=(0,), sample=True)
    wait = rig.executor.submit(Step(number=0, chunks=(chunk,), taken=(taken,)))
    product = weakref.ref(next(iter(rig.adapters.pop(7).products.values())).down)
    rig.device.work_up_to(rig.device.num_given)  # a GPU's queue keeps nothing of Python's
    gc.collect()
    assert product() is not None
    wait()
    gc.collect()
    assert product() is None


def test_a_planned_batch_with_guesses_keeps_its_adapters(checkpoint: Checkpoint, folder: Path) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), seed=1)
    rig.adapters.update(weights(rig, folder))
    asks = [(PROMPT * 2, GREEDY, 12), (PROMPT[::-1] * 2, GREEDY, 12)]
    guessed = Drive(rig.executor, rig.capacity, asks, depth=2, guesses=True, adapter=8)
    plain = torch_executor(checkpoint, rig.capacity)
    plain._adapters = rig.adapters
    assert guessed.tokens == Drive(plain, rig.capacity, asks, adapter=8).tokens
    assert guessed.planner.num_draft_tokens > 0
