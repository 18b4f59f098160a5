"""The adapters of a step and their rows, which come through pinned memory: nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from limelight.kernels.interface import Kernels
from limelight.models.lora.active_adapters import ActiveAdapter, ActiveAdapters, adapter_groups
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.lora.row_groups import RowGroup
from limelight.step import Chunk

Words = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The adapters of a step.

    Attributes:
        groups: their rows.
        weights: theirs, in the same order; kept until the step is through.
        words: all rows that are listed, one group after the other, sampled ones behind.
    """

    groups: tuple[RowGroup, ...]
    weights: tuple[AdapterWeights, ...]
    words: Words

    def on(self, kernels: Kernels, rows: Tensor) -> tuple[ActiveAdapters, ActiveAdapters]:
        """For all rows and for the sampled ones, on the device.

        Args:
            rows: [len(words)] int32 on the device, which will hold `words`.
        """
        index = rows.long()
        every: list[ActiveAdapter] = []
        sampled: list[ActiveAdapter] = []
        first = 0
        for group, weights in zip(self.groups, self.weights, strict=True):
            for listed, into in ((group.rows, every), (group.sampled, sampled)):
                if listed is None:
                    into.append(ActiveAdapter(None, weights.products))
                elif listed:
                    into.append(ActiveAdapter(index[first : first + len(listed)], weights.products))
                    first += len(listed)
        return ActiveAdapters(kernels, every), ActiveAdapters(kernels, sampled)


def adapter_rows(
    chunks: Sequence[Chunk],
    adapter_of_seat: Sequence[int | None],
    sample_rows: Sequence[int],
    weights: Mapping[int, AdapterWeights],
) -> AdapterRows | None:
    """The adapters of `chunks`; None for the base model alone.

    Raises:
        ValueError: a seat's adapter is not loaded.
    """
    groups = adapter_groups(chunks, adapter_of_seat, sample_rows, weights)
    if not groups:
        return None
    listed = [row for group in groups for rows in (group.rows, group.sampled) for row in rows or ()]
    return AdapterRows(groups, tuple(weights[group.adapter] for group in groups), np.array(listed, np.int32))
