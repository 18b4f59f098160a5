"""Runs a coroutine and interferes at one of its suspensions: what a cancellation meets at each `await` of a path."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

Interference = Callable[["asyncio.Task[Any]", "asyncio.Future[Any] | None"], None]
"""Called with the task that suspends, and what it waits for (None: the loop's next turn)."""


class Suspending:
    """An awaitable that is `work`; at its suspension `number` (from 1), `interfere` is called first.

    Attributes:
        num_suspensions: so far.
    """

    def __init__(self, work: Awaitable[Any], number: int, interfere: Interference) -> None:
        self._work = work
        self._number = number
        self._interfere = interfere
        self.num_suspensions = 0

    @property
    def has_interfered(self) -> bool:
        """Whether `work` came that far."""
        return self.num_suspensions >= self._number

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            self.num_suspensions += 1
            if self.num_suspensions == self._number:
                task = asyncio.current_task()
                assert task is not None
                self._interfere(task, waits_for)
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is the work's
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, value)


def cancel_now(task: "asyncio.Task[Any]", waits_for: "asyncio.Future[Any] | None") -> None:
    """Before what it waits for has come."""
    task.cancel()


def cancel_with_result(task: "asyncio.Task[Any]", waits_for: "asyncio.Future[Any] | None") -> None:
    """In the same turn as what it waits for, which is lost for the waiter."""
    if waits_for is None:
        task.cancel()
    else:
        waits_for.add_done_callback(lambda _: task.cancel())  # runs before the task does
