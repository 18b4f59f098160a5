"""The adapters of one step and their rows, as tensors for the forward pass. A step of the base model alone has none."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.kernels.interface import Kernels, LowRank, LowRankRows, Rows
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.lora.row_groups import RowGroup, group_rows
from limelight.step import Chunk


class ActiveAdapter(NamedTuple):
    """An adapter of this step: its rows ([rows] int64, None for all), and by the first name of a projection what it
    adds there.
    """

    rows: Tensor | None
    products: Mapping[str, LowRank]


class ActiveAdapters:
    """See `layers.Adapters`."""

    def __init__(self, kernels: Kernels, adapters: Sequence[ActiveAdapter]) -> None:
        self._kernels = kernels
        self._adapters = adapters

    def add_to(self, projection: str, outputs: Rows, inputs: Rows) -> None:
        """One call of the kernels for all adapters that change the projection."""
        additions = [
            LowRankRows(rows=rows, product=products[projection])
            for rows, products in self._adapters
            if projection in products
        ]
        if additions:
            self._kernels.add_low_rank(outputs, inputs, additions)


def active_adapters(
    chunks: Sequence[Chunk],
    adapter_of_seat: Sequence[int | None],
    sample_rows: Sequence[int],
    kernels: Kernels,
    weights: Mapping[int, AdapterWeights],
) -> tuple[ActiveAdapters | None, ActiveAdapters | None]:
    """The adapters of `chunks`, with their rows among all, and with those among `sample_rows`.

    Raises:
        ValueError: a seat's adapter is not loaded.
    """
    groups = adapter_groups(chunks, adapter_of_seat, sample_rows, weights)
    if not groups:
        return None, None
    device = kernels.device
    return (
        ActiveAdapters(
            kernels,
            [ActiveAdapter(_index(group.rows, device), weights[group.adapter].products) for group in groups],
        ),
        ActiveAdapters(
            kernels,
            [
                ActiveAdapter(_index(group.sampled, device), weights[group.adapter].products)
                for group in groups
                if group.sampled != ()
            ],
        ),
    )


def adapter_groups(
    chunks: Sequence[Chunk],
    adapter_of_seat: Sequence[int | None],
    sample_rows: Sequence[int],
    weights: Mapping[int, AdapterWeights],
) -> tuple[RowGroup, ...]:
    """The rows of each adapter of `chunks`; none for the base model alone.

    Raises:
        ValueError: a seat's adapter is not loaded.
    """
    own = [adapter_of_seat[chunk.seat] for chunk in chunks]
    for chunk, adapter in zip(chunks, own, strict=True):
        if adapter is not None and adapter not in weights:
            raise ValueError(f"seat {chunk.seat} runs with adapter {adapter}; the loaded ones are {sorted(weights)}")
    return group_rows(chunks, own, sample_rows)


def _index(rows: tuple[int, ...] | None, device: str) -> Tensor | None:
    return None if rows is None else torch.tensor(rows, dtype=torch.int64, device=device)
