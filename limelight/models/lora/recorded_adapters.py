"""The adapters of a step in a pass that was recorded once: the recording has a place for them that each step fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.low_rank import NO_ADAPTER, AdapterBuffers, PackedAdapter
from limelight.kernels.cpu.recorder import Value
from limelight.kernels.cpu.step_buffers import StepLimits
from limelight.models.layers import ProjectionShape
from limelight.step import Chunk

if TYPE_CHECKING:
    from limelight.models.lora.adapter_file import AdapterWeights


class RecordedAdapters:
    """See the module.

    Attributes:
        all_rows, sampled_rows: what stands for the adapters in the recording, for projections of all rows of the step
            and of those that draw a token.
        read_rows: the same for rows that are read after the step, which `choose` says.
    """

    def __init__(
        self,
        projections: Sequence[ProjectionShape],
        kernels: CpuKernels,
        limits: StepLimits,
        max_adapters: int,
        max_rank: int,
    ) -> None:
        """Set aside memory for at most `max_adapters` in a step, of ranks up to `max_rank`.

        Args:
            projections: those that adapters can change.
        """
        ranks = {shape.names[0]: max_rank * len(shape.names) for shape in projections}
        self._buffers = AdapterBuffers(ranks, max_adapters, limits.num_tokens, limits.num_sampled)
        self._packed: WeakKeyDictionary[AdapterWeights, PackedAdapter] = WeakKeyDictionary()
        self.all_rows = AdaptersOfRows(kernels, self._buffers, self._buffers.row_adapters)
        self.sampled_rows = AdaptersOfRows(kernels, self._buffers, self._buffers.sampled_adapters)
        self._read_adapters = np.full(limits.num_tokens, NO_ADAPTER, np.int32)
        self.read_rows = AdaptersOfRows(kernels, self._buffers, self._read_adapters)

    def fill(
        self, chunks: Sequence[Chunk], adapter_of_seat: Sequence[int | None], weights: Mapping[int, AdapterWeights]
    ) -> None:
        """Say which rows of the next step have which adapter; a step of the base model alone costs next to nothing.

        Raises:
            ValueError: a seat's adapter is not loaded.
        """
        numbers: dict[int | None, int] = {}
        for chunk in chunks:
            adapter = adapter_of_seat[chunk.seat]
            if adapter is None or adapter in numbers:
                continue
            if adapter not in weights:
                raise ValueError(
                    f"seat {chunk.seat} runs with adapter {adapter}; the loaded ones are {sorted(weights)}"
                )
            numbers[adapter] = len(numbers)
        self._buffers.activate([self._pack(weights[adapter]) for adapter in numbers if adapter is not None])
        if not numbers:
            return
        row = sampled = 0
        for chunk in chunks:
            number = numbers.get(adapter_of_seat[chunk.seat], NO_ADAPTER)
            num_sampled = chunk.num_drafts + 1 if chunk.sample else 0
            self._buffers.row_adapters[row : row + chunk.num_tokens] = number
            self._buffers.sampled_adapters[sampled : sampled + num_sampled] = number
            row += chunk.num_tokens
            sampled += num_sampled

    def choose(self, first: int, num_rows: int) -> None:
        """Let `read_rows` be so many rows of the last step, which has adapters."""
        self._read_adapters[:num_rows] = self._buffers.row_adapters[first : first + num_rows]

    def _pack(self, weights: AdapterWeights) -> PackedAdapter:
        packed = self._packed.get(weights)
        if packed is None:
            packed = self._packed[weights] = self._buffers.pack(weights.products)
        return packed


class AdaptersOfRows:
    """See `layers.Adapters`: records a place for the adapters of these rows."""

    def __init__(self, kernels: CpuKernels, buffers: AdapterBuffers, row_adapters: NDArray[np.int32]) -> None:
        self._kernels = kernels
        self._buffers = buffers
        self._row_adapters = row_adapters

    def add_to(self, projection: str, outputs: Value, inputs: Value) -> None:
        """An operation that does nothing in steps without an adapter for `projection`."""
        self._buffers.record(self._kernels.recorder, projection, self._row_adapters, outputs, inputs)
