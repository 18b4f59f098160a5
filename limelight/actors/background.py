"""Work of the layers above that must outlive whoever began it: tasks of the engine, which end with it at the latest."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from limelight.telemetry.log_fields import without_message

logger = logging.getLogger(__name__)

_inside: contextvars.ContextVar["BackgroundTasks"] = contextvars.ContextVar("limelight_background")
"""Whose work is running; what that begins has it, too."""


class BackgroundTask:
    """One piece of work, running or ended."""

    __slots__ = ("_ended", "_scope", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._scope = anyio.CancelScope()
        self._ended = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._ended.is_set()

    def cancel(self) -> None:
        """Cancel the work; it ends when it has cleaned up. Idempotent, never waits."""
        self._scope.cancel()

    async def wait(self) -> None:
        """Until it has ended. Cancelling the wait leaves the work alone."""
        await self._ended.wait()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work. What it raises is logged: nobody else may suffer from it."""
        try:
            with self._scope:
                await work()
        except Exception as error:
            logger.exception("%s failed", self.name, exc_info=without_message(error))
        finally:
            self.end()

    def end(self) -> None:
        """Tell those who wait."""
        self._ended.set()


class BackgroundTasks:
    """All work in the background of one engine; each piece is a task of `group` and is cancelled with it."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._tasks: set[BackgroundTask] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> BackgroundTask:
        """Begin `work`; `name` is for the log."""
        task = BackgroundTask(name)
        self._tasks.add(task)
        # A new context: the task must not keep the caller's context variables (spans, sessions) alive.
        context = contextvars.Context()
        context.run(_inside.set, self)
        context.run(self._group.start_soon, self._run, task, work)
        return task

    @property
    def runs_caller(self) -> bool:
        """Whether the caller is work of these tasks, and so ends with the group."""
        return _inside.get(None) is self

    async def wait_until_empty(self) -> None:
        """Until nothing is running."""
        while self._tasks:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """End those that are left when the group has ended: cancelled before they had run for the first time."""
        for task in list(self._tasks):
            task.end()
            self._remove(task)

    async def _run(self, task: BackgroundTask, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await task.run(work)
        finally:
            self._remove(task)

    def _remove(self, task: BackgroundTask) -> None:
        self._tasks.remove(task)
        self._changed.set()
