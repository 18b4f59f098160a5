"""The pinned memory of steps in flight: each step has a slot, which is used again when its step is through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from limelight.kernels.device import Device
from limelight.kernels.triton.step_memory import DrawnWords, StepLimits, drawn_words, step_words
from limelight.models.captured.host_words import HostWords

Words = NDArray[np.int32]


class PinnedWords:
    """Pinned memory that grows to the largest amount asked for.

    Growing takes the system a while, so what every step needs is asked for beforehand.
    """

    def __init__(self, device: Device, num_words: int = 0) -> None:
        self._device = device
        self._memory: Tensor | None = device.pinned(num_words) if num_words else None

    def get(self, num_words: int) -> Tensor:
        """[num_words], with anything in it."""
        if self._memory is None or len(self._memory) < num_words:
            self._memory = self._device.pinned(num_words)
        return self._memory[:num_words]


class Slot:
    """The pinned memory of one step.

    Attributes:
        words, host: what the step brings, and views of it.
        drawn: what it draws.
        event: behind all of its work.
        masks, logprobs, asked, adapter_rows, targets: memory for steps that have these.
        kept: what the step uses and must not be given back before it is through.
        release: waits until the memory may be used again; None: nothing uses it.
    """

    def __init__(self, device: Device, limits: StepLimits) -> None:
        self._device = device
        self._limits = limits
        self.words = device.pinned(step_words(limits))
        self.host = HostWords(self.words.numpy(), limits)
        self.drawn = DrawnWords(device.pinned(drawn_words(limits)), limits)
        self.event = device.event()
        self.masks = PinnedWords(device)
        self.logprobs = PinnedWords(device)
        self.asked = PinnedWords(device)
        self.adapter_rows = PinnedWords(device)
        self.targets = PinnedWords(device)
        self.kept: object = None
        self.release: Callable[[], object] | None = None
        self._rounds: list[tuple[Tensor, HostWords]] = []
        self._counts: list[Tensor] = []

    def round(self, number: int) -> tuple[Tensor, HostWords]:
        """Words of a copy that brings nothing but patches."""
        while len(self._rounds) <= number:
            words = self._device.pinned(step_words(self._limits))
            self._rounds.append((words, HostWords(words.numpy(), self._limits)))
        return self._rounds[number]

    def counts(self, number: int, vocab_size: int) -> Tensor:
        """[vocab], counts of a seat that is taken."""
        while len(self._counts) <= number:
            self._counts.append(self._device.pinned(vocab_size))
        return self._counts[number]


class Ring:
    """Slots in turn.

    Args:
        num_slots: one more than steps are in flight, so that filling never waits.
    """

    def __init__(self, device: Device, limits: StepLimits, num_slots: int) -> None:
        self._slots = [Slot(device, limits) for _ in range(num_slots)]
        self._next = 0

    def take(self) -> Slot:
        """The next slot; waits for the step that has it, if that is not through.

        Raises:
            EngineFailed: the device has failed for good.
        """
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        release, slot.release = slot.release, None
        if release is not None:
            release()
        return slot
