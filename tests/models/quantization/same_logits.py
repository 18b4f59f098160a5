"""A quantised folder against transformers run on the weights that it stands for."""

from pathlib import Path
from typing import Any

import torch

from limelight.models.checkpoint import Checkpoint, open_checkpoint
from tests.models.families.agreement import assert_same_logits_in_chunks


def assert_same_as_transformers(model: Any, folder: Path) -> Checkpoint:
    """The weights to the last bit, and the logits. `model` has the expanded weights.

    Returns:
        what Limelight read of `folder`.
    """
    checkpoint = open_checkpoint(folder)
    for name, parameter in model.named_parameters():
        assert checkpoint.shape(name) == tuple(parameter.shape)
        assert torch.equal(checkpoint.tensor(name).float(), parameter)
    assert_same_logits_in_chunks(model, checkpoint)
    return checkpoint
