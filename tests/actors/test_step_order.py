"""Steps whose masks come late, early, or not at all: everything reaches the executor, and the scheduler, in order."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from limelight.actors.messages import Masks
from limelight.actors.step_order import StepOrder, Submission
from limelight.errors import EngineFailed
from limelight.step import Chunk, Step, StepResult, TokenMasks


class Recorder:
    """An executor that writes down its calls, and the completions that follow."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.completed: list[int] = []
        self.outcomes: dict[int, Any] = {}
        self.failing: dict[str, BaseException] = {}
        self.order = StepOrder(self, self._complete)

    def submit(self, step: Step) -> Callable[[], StepResult]:
        self._call(f"submit {step.number}")
        return lambda: ()

    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        self._call(f"masks {step_number}")

    def close(self) -> None:
        pass

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise self.failing[call]

    def _complete(self, number: int, wait: Callable[[], StepResult], submission: Submission) -> None:
        self.completed.append(number)
        try:
            self.outcomes[number] = wait()
        except BaseException as error:  # noqa: BLE001
            self.outcomes[number] = error


def step(number: int, *, masked: bool = False) -> Step:
    chunk = Chunk(seat=0, start=0, num_tokens=1, token_ids=None, sample=True, masked=masked)
    return Step(number=number, chunks=(chunk,))


def test_a_step_goes_on_at_once_and_its_masks_behind_it() -> None:
    recorder = Recorder()
    recorder.order.submit(step(0))
    recorder.order.submit(step(1, masked=True))
    assert recorder.calls == ["submit 0", "submit 1"]
    assert recorder.completed == [0]
    recorder.order.put_masks(Masks(1, {}))
    assert recorder.calls[-1] == "masks 1"
    assert recorder.completed == [0, 1]


def test_later_steps_and_calls_wait_for_missing_masks() -> None:
    recorder = Recorder()
    recorder.order.submit(step(0, masked=True))
    recorder.order.submit(step(1))
    recorder.order.call(lambda: recorder.calls.append("adapter"))
    recorder.order.submit(step(2, masked=True))
    assert recorder.calls == ["submit 0"]
    recorder.order.put_masks(Masks(0, {}))
    assert recorder.calls == ["submit 0", "masks 0", "submit 1", "adapter", "submit 2"]
    assert recorder.completed == [0, 1]


def test_masks_that_come_before_their_step_are_kept_for_it() -> None:
    recorder = Recorder()
    recorder.order.submit(step(0, masked=True))
    recorder.order.put_masks(Masks(1, {}))
    recorder.order.submit(step(1, masked=True))
    recorder.order.put_masks(Masks(0, {}))
    assert recorder.calls == ["submit 0", "masks 0", "submit 1", "masks 1"]
    assert recorder.completed == [0, 1]


@pytest.mark.parametrize("early", [False, True])
def test_masks_that_cannot_be_made_fail_their_step_and_no_other(early: bool) -> None:
    recorder = Recorder()
    failure = Masks(0, ValueError("the grammar broke"))
    if early:
        recorder.order.put_masks(failure)
    recorder.order.submit(step(0, masked=True))
    recorder.order.submit(step(1))
    if not early:
        recorder.order.put_masks(failure)
    assert recorder.calls == ["submit 0", "submit 1"]
    assert str(recorder.outcomes[0]) == "the grammar broke"
    assert recorder.outcomes[1] == ()


@pytest.mark.parametrize("early", [False, True])
def test_masks_of_a_step_that_failed_are_dropped(early: bool) -> None:
    recorder = Recorder()
    recorder.failing["submit 0"] = RuntimeError("no memory")
    if early:
        recorder.order.put_masks(Masks(0, {}))
    recorder.order.submit(step(0, masked=True))
    recorder.order.submit(step(1))
    if not early:
        recorder.order.put_masks(Masks(0, {}))
    assert recorder.calls == ["submit 0", "submit 1"]
    assert recorder.completed == [0, 1]
    assert recorder.order._early == {}


def test_a_device_that_fails_at_the_masks_is_reported_as_the_steps_failure() -> None:
    recorder = Recorder()
    recorder.failing["masks 0"] = EngineFailed("lost")
    recorder.order.submit(step(0, masked=True))
    recorder.order.put_masks(Masks(0, {}))
    assert isinstance(recorder.outcomes[0], EngineFailed)


@pytest.mark.parametrize("seed", range(50))
def test_any_interleaving_gives_one_order(seed: int) -> None:
    chance = random.Random(seed)
    recorder = Recorder()
    masked = [chance.random() < 0.6 for _ in range(20)]
    steps, masks = list(range(20)), [number for number in range(20) if masked[number]]
    while steps or masks:
        if steps and (not masks or chance.random() < 0.5):
            number = steps.pop(0)
            recorder.order.submit(step(number, masked=masked[number]))
        else:
            recorder.order.put_masks(Masks(masks.pop(0), {}))
    expected = [call for n in range(20) for call in ([f"submit {n}", f"masks {n}"] if masked[n] else [f"submit {n}"])]
    assert recorder.calls == expected
    assert recorder.completed == list(range(20))
