"""A quantised folder against transformers run on the weights that it stands for."""

import random
from pathlib import Path
from typing import Any

import torch

from limelight.models.checkpoint import Checkpoint, open_checkpoint
from tests.models.sequences import Batch
from tests.models.tiny_models import VOCAB_SIZE, Rig


def assert_same_as_transformers(model: Any, folder: Path) -> Checkpoint:
    """Logits of a prompt in two chunks and of tokens after it, to 1e-4 in float32. `model` has the expanded weights.

    Returns:
        what Limelight read of `folder`.
    """
    checkpoint = open_checkpoint(folder)
    for name, parameter in model.named_parameters():
        assert checkpoint.shape(name) == tuple(parameter.shape)
        assert torch.equal(checkpoint.tensor(name).float(), parameter)
    assert_same_logits(model, checkpoint)
    return checkpoint


def assert_same_logits(model: Any, checkpoint: Checkpoint) -> None:
    """The part about logits, for models that hold their weights in another form."""
    rig = Rig(checkpoint)
    batch = Batch(rig.executor, rig.capacity.page_size, range(64))
    sequence = batch.sit(3, random.Random(0).choices(range(VOCAB_SIZE), k=25))
    batch.step((sequence, 10))
    batch.step((sequence, 15))
    for _ in range(3):
        with torch.inference_mode():
            expected = model(torch.tensor([sequence.tokens[:-1]])).logits[0, -1:]
        torch.testing.assert_close(rig.logits, expected, atol=1e-4, rtol=1e-4)
        batch.step((sequence, 1))
