"""Gives the parts of a step to the device, in order: deltas, layers, masks, head and draw, the way back. Never waits.

What no captured pass holds, what has adapters or reports on its rows, and the head of rows that want log-probabilities
run uncaptured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from limelight.kernels.cuda_graph import Buckets, CaptureCost, PassKind, capture, sequence_buckets, token_buckets
from limelight.kernels.device import Device
from limelight.kernels.step_kernels import StepKernels
from limelight.models.captured.adapter_rows import AdapterRows
from limelight.models.captured.buffers import StepBuffers
from limelight.models.captured.log_probabilities import WantedLogprobs, write_logprobs
from limelight.models.captured.passes import Passes
from limelight.models.captured.seat_mirror import SeatChange
from limelight.models.captured.seat_settings import starting_counts
from limelight.models.captured.slots import Slot
from limelight.models.captured.step_content import StepContent
from limelight.models.readouts import Readouts
from limelight.models.token_masks import check_mask
from limelight.step import SeatTaken, TokenMasks

LARGEST_CAPTURED_TOKENS = 8192
"""Steps of more rows run uncaptured: launching is nothing beside what they compute."""
EVERY_TOKEN = -1


class Launcher:
    """The device's side of an executor."""

    def __init__(self, device: Device, kernels: StepKernels, passes: Passes, buffers: StepBuffers) -> None:
        self._device = device
        self._kernels = kernels
        self._passes = passes
        self._buffers = buffers
        self._decodes, self._mixed, self._drawing = [Buckets(kind) for kind in self.kinds()]

    def kinds(self) -> tuple[PassKind, PassKind, PassKind]:
        """The passes that can be captured: decodes by sequences, other layers by rows, heads by sampled rows."""
        limits, passes = self._buffers.limits, self._passes
        return (
            PassKind("decode", sequence_buckets(limits.chunks), passes.decodes),
            PassKind("mixed", token_buckets(min(limits.rows, LARGEST_CAPTURED_TOKENS)), passes.mixed),
            PassKind("draw", sequence_buckets(limits.sampled), passes.drawing),
        )

    def capture(self, report: Callable[[float], None]) -> CaptureCost:
        """Capture the passes that most steps need; before the first step.

        Raises:
            OutOfMemory: there is not enough memory for them.
        """
        (self._decodes, self._mixed, self._drawing), cost = capture(self._device, self.kinds(), report)
        return cost

    def change_seats(self, slot: Slot, change: SeatChange) -> None:
        """Deltas of a step that has nothing else."""
        self._patch_in_rounds(slot, change, 0)
        self._count(slot, change.counted)

    def run_layers(
        self,
        slot: Slot,
        change: SeatChange,
        content: StepContent,
        adapted: AdapterRows | None,
        readouts: Readouts | None,
    ) -> None:
        """Deltas and layers. Later steps rely on the deltas, also where there is no memory for the layers."""
        num_left = self._patch_in_rounds(slot, change, self._buffers.limits.patches)
        num_words = slot.host.write(content)
        first = len(change.addresses) - num_left
        slot.host.write_patches(change.addresses[first:], change.values[first:])
        self._upload(slot.words, num_words)
        buckets, size = (self._decodes, content.num_chunks) if content.only_decodes else (self._mixed, content.num_rows)
        graph = None if adapted or readouts else buckets.graph(size)
        if graph is not None:
            graph.replay()
        else:
            self._device.run(self._passes.patch)
        self._count(slot, change.counted)  # which only the draw reads
        if graph is None:
            self._run_uncaptured(slot, content, adapted, readouts)

    def put_masks(self, slot: Slot, content: StepContent, masks: TokenMasks) -> None:
        """Masks of the step's masked rows.

        Raises:
            ValueError: a mask has another size than its rows need.
        """
        width = self._buffers.allowed.shape[1]
        num_rows = sum(content.masked.values())
        pinned = slot.masks.get(num_rows * width)
        words = pinned.numpy().reshape(num_rows, width)
        first = 0
        for number, chunk_rows in content.masked.items():
            mask, rows = masks.get(number), words[first : first + chunk_rows]
            if mask is None:
                rows.fill(EVERY_TOKEN)
            else:
                check_mask(number, mask, rows.nbytes)
                rows[:] = np.frombuffer(mask, np.int32).reshape(rows.shape)
            first += chunk_rows
        self._device.run(partial(_copy, self._buffers.allowed[:num_rows], pinned.view(num_rows, width)))

    def run_head(
        self, slot: Slot, content: StepContent, adapted: AdapterRows | None, wanted: WantedLogprobs | None
    ) -> None:
        """Head, draw, and the way back, with log-probabilities if some are wanted."""
        num_sampled = content.num_sampled
        if not num_sampled:
            return
        graph = None if adapted or wanted is not None else self._drawing.graph(num_sampled)
        if graph is not None:
            graph.replay()
        else:
            work: Callable[[], object] = partial(self._uncaptured_head, num_sampled, adapted)
            if wanted is not None:
                asked = slot.asked.get(wanted.asked.size)
                asked.numpy()[:] = wanted.asked.flat
                target = slot.logprobs.get(num_sampled * wanted.row_words)
                work = partial(self._uncaptured_logprobs, num_sampled, adapted, wanted, asked, target)
            self._device.run(work)
        self._device.run(partial(_copy, slot.drawn.words, self._buffers.drawn.words))

    def _run_uncaptured(
        self, slot: Slot, content: StepContent, adapted: AdapterRows | None, readouts: Readouts | None
    ) -> None:
        if adapted is not None:
            pinned = slot.adapter_rows.get(len(adapted.words))
            pinned.numpy()[:] = adapted.words
            self._device.run(partial(_copy, self._buffers.adapter_rows[: len(pinned)], pinned))
        targets: Tensor | None = None
        if readouts is not None:
            targets = slot.targets.get(len(readouts.targets))
            targets.numpy()[:] = readouts.targets
        self._device.run(partial(self._uncaptured_body, content, adapted, readouts, targets))

    # ---- on the device

    def _uncaptured_body(
        self, content: StepContent, adapted: AdapterRows | None, readouts: Readouts | None, targets: Tensor | None
    ) -> None:
        hidden, residual = self._passes.body(
            content.num_rows,
            content.num_chunks,
            only_decodes=content.only_decodes,
            adapters=None if adapted is None else adapted.on(self._kernels, self._buffers.adapter_rows)[0],
        )
        if readouts is not None and targets is not None:
            reports = self._passes.read_rows(hidden, residual, readouts.readings, targets)
            readouts.reports.extend(reports)

    def _uncaptured_head(self, num_sampled: int, adapted: AdapterRows | None) -> Tensor:
        adapters = None if adapted is None else adapted.on(self._kernels, self._buffers.adapter_rows)[1]
        return self._passes.head(num_sampled, adapters)

    def _uncaptured_logprobs(
        self, num_sampled: int, adapted: AdapterRows | None, wanted: WantedLogprobs, asked: Tensor, target: Tensor
    ) -> None:
        logits = self._uncaptured_head(num_sampled, adapted)
        token_ids = self._buffers.drawn.token_ids[:num_sampled]
        write_logprobs(logits, token_ids, wanted.num_best, asked.view(num_sampled, -1), target)

    # ---- deltas

    def _count(self, slot: Slot, counted: Sequence[SeatTaken]) -> None:
        """Start the counts of seats with penalties. They are read by `draw` alone."""
        table = self._buffers.seats.counts
        for number, taken in enumerate(counted):
            pinned = slot.counts(number, table.shape[1])
            starting_counts(taken, pinned.numpy())
            self._device.run(partial(_copy, table[taken.seat], pinned))

    def _patch_in_rounds(self, slot: Slot, change: SeatChange, num_left: int) -> int:
        """Write patches until at most `num_left` are left; how many are."""
        size = self._buffers.limits.patches
        total = len(change.addresses)
        first = number = 0
        while total - first > num_left:
            words, host = slot.round(number)
            end = min(first + size, total)
            num_words = host.write_nothing_but_patches(change.addresses[first:end], change.values[first:end])
            self._upload(words, num_words)
            self._device.run(self._passes.patch)
            first, number = end, number + 1
        return total - first

    def _upload(self, words: Tensor, num_words: int) -> None:
        self._device.run(partial(_copy, self._buffers.step.words[:num_words], words[:num_words]))


@torch.inference_mode()
def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
