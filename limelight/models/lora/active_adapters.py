"""The adapters of one step and their rows, as tensors for the forward pass. A step of the base model alone has none."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from limelight.models.layers import ActiveAdapter
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.lora.row_groups import group_rows
from limelight.step import Chunk

Active = tuple[ActiveAdapter, ...]


def active_adapters(
    chunks: Sequence[Chunk],
    adapter_of_seat: Sequence[int | None],
    sample_rows: Sequence[int],
    weights: Mapping[int, AdapterWeights],
    device: torch.device,
) -> tuple[Active, Active]:
    """The adapters of `chunks`, with their rows among all, and with those among `sample_rows`.

    Raises:
        ValueError: a seat's adapter is not loaded.
    """
    own = [adapter_of_seat[chunk.seat] for chunk in chunks]
    for chunk, adapter in zip(chunks, own, strict=True):
        if adapter is not None and adapter not in weights:
            raise ValueError(f"seat {chunk.seat} runs with adapter {adapter}; the loaded ones are {sorted(weights)}")
    groups = group_rows(chunks, own, sample_rows)
    return (
        tuple(ActiveAdapter(_index(group.rows, device), weights[group.adapter].products) for group in groups),
        tuple(
            ActiveAdapter(_index(group.sampled, device), weights[group.adapter].products)
            for group in groups
            if group.sampled != ()
        ),
    )


def _index(rows: tuple[int, ...] | None, device: torch.device) -> Tensor | None:
    return None if rows is None else torch.tensor(rows, dtype=torch.int64, device=device)
