"""What every family must agree with transformers on, given a tiny random model: logits, and 64 greedy tokens while
sequences are cut into chunks, share pages, and lose their seats.

`assert_agrees(model, saved(model, folder))` runs it all; a test of one setting calls `assert_same_logits_in_chunks`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from limelight.models.checkpoint import Checkpoint
from tests.models.sequences import Batch, Running
from tests.models.tiny_models import VOCAB_SIZE, Rig

TOLERANCE = 1e-4
PAGE_SIZE = 8
NUM_GREEDY = 64
MakeRig = Callable[[Checkpoint], Rig]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] by transformers."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def assert_same_logits(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@dataclass
class Oracle:
    """A model in transformers, and the same as Limelight opens it."""

    model: Any
    checkpoint: Checkpoint

    def assert_greedy(self, sequence: Running) -> None:
        """Each drawn token is what transformers finds most likely after those before it."""
        expected = logits_of(self.model, sequence.tokens[:-1])[sequence.num_prompt_tokens - 1 :]
        assert sequence.output == expected.argmax(-1).tolist()


def assert_agrees(model: Any, checkpoint: Checkpoint, make_rig: MakeRig = Rig) -> None:
    """Everything below. `model` and `checkpoint` hold the same weights, with `VOCAB_SIZE` tokens and 128 positions."""
    assert_same_logits_in_chunks(model, checkpoint, make_rig)
    assert_same_greedy_tokens(model, checkpoint, make_rig)


def assert_same_logits_in_chunks(model: Any, checkpoint: Checkpoint, make_rig: MakeRig = Rig) -> None:
    """A prompt in two chunks, then single tokens across page borders."""
    rig = make_rig(checkpoint)
    batch = Batch(rig.executor, PAGE_SIZE, range(64))
    prompt = prompt_of(45)
    sequence = batch.sit(3, prompt)
    batch.step((sequence, 17))
    batch.step((sequence, 28))
    assert_same_logits(rig.logits, logits_of(model, prompt)[-1:])
    for _ in range(9):
        batch.step((sequence, 1))
        assert_same_logits(rig.logits, logits_of(model, sequence.tokens[:-1])[-1:])


def assert_same_greedy_tokens(model: Any, checkpoint: Checkpoint, make_rig: MakeRig = Rig) -> None:
    """Four sequences at once, up to 64 tokens each.

    Two share the pages of a prefix, which the first of them writes in the very step in which the second reads them; a
    long prompt comes in chunks while the others decode; one sequence is preempted, another one takes its pages, and all
    it had is computed again at another seat.
    """
    oracle, rig = Oracle(model, checkpoint), make_rig(checkpoint)
    batch = Batch(rig.executor, PAGE_SIZE, range(64))
    prefix = prompt_of(2 * PAGE_SIZE, 1)
    first = batch.sit(0, prefix + prompt_of(5, 2))
    second = batch.sit(1, prefix + prompt_of(9, 3), shared_pages=[0, 1])
    victim_prompt = prompt_of(13, 4)
    victim = batch.sit(2, victim_prompt)
    batch.step((first, 21), (second, 9), (victim, 13))
    long = batch.sit(4, prompt_of(60, 5))
    for size in (7, 1, 33):
        batch.step((long, size), (first, 1), (second, 1), (victim, 1))
    batch.leave(victim)
    batch.step((long, 19), (second, 1))
    again = batch.sit(5, victim_prompt, output=victim.output)
    batch.step((again, 6), (long, 1), (first, 1))
    batch.step((again, len(again.tokens) - again.num_computed), (long, 1), (second, 1))
    _finish(batch, [second, again, first, long])
    for sequence in (first, second, again, long):
        assert len(sequence.output) == NUM_GREEDY
        oracle.assert_greedy(sequence)


def assert_all_differ(models: Sequence[Any], length: int = 100) -> None:
    """Guards comparisons over settings: the models (of equal weights) give different logits for the same prompt."""
    seen: list[torch.Tensor] = []
    for index, model in enumerate(models):
        seen.append(logits_of(model, prompt_of(length))[-1])
        assert not any(torch.allclose(seen[-1], other, atol=1e-2) for other in seen[:-1]), index


def _finish(batch: Batch, sequences: Sequence[Running]) -> None:
    while unfinished := [sequence for sequence in sequences if len(sequence.output) < NUM_GREEDY]:
        batch.step(*((sequence, 1) for sequence in unfinished))
