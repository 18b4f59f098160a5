"""Submits steps to the executor in order: a step whose masks have not come holds back those after it.

Used on the submit thread only.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from limelight.actors.messages import Masks
from limelight.step import Step, StepExecutor, StepResult

Wait = Callable[[], StepResult]


class Submission(NamedTuple):
    """When a step went to the device, in monotonic seconds.

    Attributes:
        started_at: when the executor was given it.
        submitted_at: when the executor had taken it.
        masked_at: when the executor had its masks, too; the same again for a step without.
    """

    started_at: float
    submitted_at: float
    masked_at: float


Complete = Callable[[int, Wait, Submission], None]
"""Told the number of a step, what waits for its result (or raises why it failed), and when it was submitted."""


class _Undrawn(msgspec.Struct, frozen=True):
    number: int
    wait: Wait
    started_at: float
    submitted_at: float


class StepOrder:
    """Steps and their masks in any order become steps, each with its masks behind it, in the order of the steps.

    Args:
        complete: told of every step that has been given to the device as a whole, or has failed, in their order.
    """

    def __init__(self, executor: StepExecutor, complete: Complete) -> None:
        self._executor = executor
        self._complete = complete
        self._undrawn: _Undrawn | None = None
        self._held: deque[Callable[[], None]] = deque()
        self._early: dict[int, Masks] = {}
        self._last = -1

    def submit(self, step: Step) -> None:
        """Submit a step, or hold it back."""
        self.call(partial(self._run, step))

    def call(self, function: Callable[[], None]) -> None:
        """Call it between the steps that were submitted before and those that come."""
        self._held.append(function)
        self._go_on()

    def put_masks(self, masks: Masks) -> None:
        """Let a step draw that waits for these; those of a step that has failed are dropped."""
        if self._undrawn is not None and self._undrawn.number == masks.number:
            self._draw(self._undrawn, masks)
            self._go_on()
        elif masks.number > self._last:
            self._early[masks.number] = masks

    def _go_on(self) -> None:
        while self._held and self._undrawn is None:
            self._held.popleft()()

    def _run(self, step: Step) -> None:
        started_at = time.monotonic()
        self._last = step.number
        masks = self._early.pop(step.number, None)
        try:
            wait = self._executor.submit(step)
        except BaseException as error:  # noqa: BLE001 - where a step runs
            now = time.monotonic()
            self._complete(step.number, partial(_reraise, error), Submission(started_at, now, now))
            return
        submitted_at = time.monotonic()
        if not any(chunk.masked for chunk in step.chunks):
            self._complete(step.number, wait, Submission(started_at, submitted_at, submitted_at))
            return
        self._undrawn = _Undrawn(step.number, wait, started_at, submitted_at)
        if masks is not None:
            self._draw(self._undrawn, masks)

    def _draw(self, undrawn: _Undrawn, message: Masks) -> None:
        self._undrawn = None
        wait = undrawn.wait
        if isinstance(message.masks, Exception):
            wait = partial(_reraise, message.masks)
        else:
            try:
                self._executor.put_masks(undrawn.number, message.masks)
            except BaseException as error:  # noqa: BLE001 - where a step runs
                wait = partial(_reraise, error)
        submission = Submission(undrawn.started_at, undrawn.submitted_at, time.monotonic())
        self._complete(undrawn.number, wait, submission)


def _reraise(error: BaseException) -> StepResult:
    raise error
