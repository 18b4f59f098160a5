"""Runs steps on a GPU by replaying captured passes: a step is a few numbers in pinned memory, a copy, two graphs, and a
copy back. Only the thread that wants the result waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from limelight.errors import EngineFailed
from limelight.kernels.cuda_graph import CaptureCost, PassKind
from limelight.kernels.device import Device
from limelight.kernels.step_kernels import StepKernels
from limelight.models.captured.adapter_rows import AdapterRows, adapter_rows
from limelight.models.captured.buffers import StepBuffers
from limelight.models.captured.launcher import Launcher
from limelight.models.captured.log_probabilities import WantedLogprobs
from limelight.models.captured.passes import CapturableModel, Passes
from limelight.models.captured.pending import PendingStep, Wanted
from limelight.models.captured.seat_mirror import SeatMirror
from limelight.models.captured.slots import Ring, Slot
from limelight.models.captured.step_content import StepContent
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.models.readouts import Readouts, readings_of
from limelight.models.sampler import padded
from limelight.step import Capacity, Step, StepResult, TokenMasks

NUM_SLOTS = 3
"""Two steps in flight, and one that is being filled."""


class CapturedStepExecutor:
    """See `StepExecutor`. Owns weights, KV pool, seats, buffers and graphs.

    Until `capture` is called, all steps run uncaptured.
    """

    def __init__(
        self,
        model: CapturableModel,
        kernels: StepKernels,
        kv: Any,
        device: Device,
        capacity: Capacity,
        buffers: StepBuffers,
        adapters: Mapping[int, AdapterWeights] | None = None,
    ) -> None:
        """Take over weights, pages and buffers; `adapters` are the loaded ones by id, and may change between steps."""
        self._device = device
        self._vocab_size = capacity.vocab_size
        self._adapters = {} if adapters is None else adapters
        self._mirror = SeatMirror(capacity, buffers.limits, buffers.seats.layout)
        self._ring = Ring(device, buffers.limits, NUM_SLOTS)
        passes = Passes(model, kernels, kv, buffers, capacity.page_size)
        self._launcher: Launcher | None = Launcher(device, kernels, passes, buffers)
        self._undrawn: _Undrawn | None = None
        device.synchronize()

    def kinds(self) -> Sequence[PassKind]:
        """The passes that `capture` captures."""
        assert self._launcher is not None, "nothing runs after close()"
        return self._launcher.kinds()

    def capture(self, report: Callable[[float], None]) -> CaptureCost:
        """Capture the passes that most steps need; before the first step.

        Raises:
            OutOfMemory: there is not enough memory for them.
        """
        assert self._launcher is not None, "nothing runs after close()"
        return self._launcher.capture(report)

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """Give the step to the device, and return what waits for its result.

        Raises:
            ValueError: the step contradicts the seats; nothing has been changed then.
            OutOfMemory: the device has not enough memory for this step.
            EngineFailed: the device has failed for good.
            RuntimeError: `close` has been called.
        """
        launcher = self._launcher
        if launcher is None:
            raise RuntimeError(f"step {step.number} was submitted after close()")
        self._give_up()
        change = self._mirror.read(step)
        content, adapted, readouts = change.content, None, None
        if content is not None:
            sample_rows = content.parts["sample_rows"].tolist()
            adapted = adapter_rows(step.chunks, change.adapters, sample_rows, self._adapters)
            if any(chunk.readout is not None for chunk in step.chunks):
                readouts = Readouts(*readings_of(step.chunks, change.adapters, self._adapters))
        self._mirror.apply(change)
        if content is None and not len(change.addresses):
            return tuple

        slot = self._ring.take()
        slot.kept, slot.release = adapted, slot.event.wait
        if content is None:
            with _ending(slot):
                launcher.change_seats(slot, change)
            return tuple
        wanted = self._wanted(step, content)
        pending = PendingStep(step, content, slot, wanted, readouts)
        undrawn = _Undrawn(step.number, content, slot, adapted, wanted.logprobs, pending)
        with _ending(slot):
            launcher.run_layers(slot, change, content, adapted, readouts)
            if content.masked:
                self._undrawn = undrawn
            else:
                self._draw(launcher, undrawn)
        return pending.result

    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        """Let the last step draw.

        Raises:
            ValueError: a mask has the wrong size, or no such step waits for masks.
            OutOfMemory, EngineFailed: as `submit`.
        """
        undrawn, self._undrawn = self._undrawn, None
        if self._launcher is None or undrawn is None or undrawn.number != step_number:
            raise ValueError(f"step {step_number} does not wait for masks")
        with _ending(undrawn.slot):
            self._launcher.put_masks(undrawn.slot, undrawn.content, masks)
            self._draw(self._launcher, undrawn)

    def close(self) -> None:
        """Let go of weights, pages, buffers and graphs, once nothing uses them any more."""
        with contextlib.suppress(EngineFailed):
            self._device.synchronize()
        self._launcher = self._undrawn = None
        self._adapters = {}

    def _draw(self, launcher: Launcher, undrawn: _Undrawn) -> None:
        slot, pending = undrawn.slot, undrawn.pending
        launcher.run_head(slot, undrawn.content, undrawn.adapted, undrawn.logprobs)
        slot.release = pending.collect

    def _give_up(self) -> None:
        """Forget a step whose masks have not come: its sequences are lost."""
        undrawn, self._undrawn = self._undrawn, None
        if undrawn is not None:
            undrawn.pending.give_up()

    def _wanted(self, step: Step, content: StepContent) -> Wanted:
        mirror = self._mirror
        seats = [chunk.seat for chunk in step.chunks if chunk.sample]
        num_logprobs = [mirror.num_logprobs(seat) for seat in seats]
        most = max((number for number in num_logprobs if number is not None), default=None)
        asked: list[tuple[int, ...]] = [()] * len(seats)
        logprobs: WantedLogprobs | None = None
        if most is not None:
            asked = [mirror.asked(seat) for seat in seats]
            rows = np.repeat(np.array(padded(asked), np.int32), content.num_drawn, axis=0)
            logprobs = WantedLogprobs(min(most, self._vocab_size), rows)
        return Wanted(
            num_logprobs=num_logprobs,
            num_asked=[len(token_ids) for token_ids in asked],
            logprobs=logprobs,
            refused=[mirror.refused.get(seat) for seat in seats] if mirror.refused else [None] * len(seats),
        )


class _Undrawn(NamedTuple):
    """A step whose layers have been given to the device, and whose head has not."""

    number: int
    content: StepContent
    slot: Slot
    adapted: AdapterRows | None
    logprobs: WantedLogprobs | None
    pending: PendingStep


@contextlib.contextmanager
def _ending(slot: Slot) -> Iterator[None]:
    """Put the slot's event behind what is given to the device here, whether all of it is or not."""
    try:
        yield
    finally:
        slot.event.record()
