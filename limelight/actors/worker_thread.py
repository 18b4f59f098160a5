"""A named thread that runs calls in order, and speaks to the event loop only through `call_soon_threadsafe`.

A dedicated thread with a `SimpleQueue` answers in about 20 us; executors and `to_thread` take two to five times that
and leave idle threads behind.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from limelight.actors.outcome import settle
from limelight.errors import EngineFailed

Job = Callable[[], None]
T = TypeVar("T")


class BusyThread(NamedTuple):
    """A thread that is at a job.

    Attributes:
        ident: as `threading.Thread.ident`.
        since: when the job began, in monotonic seconds.
    """

    name: str
    ident: int
    since: float


class WorkerThreads:
    """`count` daemon threads that share one queue of jobs. A job handles its own exceptions.

    Args:
        name: prefix of the threads' names.
        count: with one thread, jobs run strictly in order.

    Raises:
        RuntimeError: the system has no thread left to give; those that had started end again.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._ended = [self._loop.create_future() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._work, args=(ended,), name=f"{name}-{number}", daemon=True)
            for number, ended in enumerate(self._ended)
        ]
        self._ending = False
        self._busy: dict[int, float] = {}  # ident of a thread -> when its job began
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.end()
            raise

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self._threads)

    def busy(self) -> list[BusyThread]:
        """The threads that are at a job; from any thread."""
        since = self._busy.copy()
        return [
            BusyThread(thread.name, thread.ident, since[thread.ident])
            for thread in self._threads
            if thread.ident in since
        ]

    def put(self, job: Job) -> None:
        """Queue a job; never waits."""
        self._jobs.put(job)

    def call(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue a call and return the future of its outcome, on the loop; it stays open if the call is dropped.

        If the future is cancelled before a thread has begun, the call is forgotten, and what it holds is let go.
        An error that must not pass through the loop (`SystemExit`, `KeyboardInterrupt`) arrives as `EngineFailed`.
        """
        call = _Call(self._loop, function)
        self.put(call.run)
        return call.outcome

    def drop_queued(self) -> None:
        """Forget the jobs that no thread has begun."""
        with contextlib.suppress(Empty):
            while True:
                self._jobs.get_nowait()

    def end(self, last: Job | None = None) -> None:
        """Let the threads end after what is queued, and then `last`. From any thread, idempotent, never waits."""
        if self._ending:
            return
        self._ending = True
        if last is not None:
            self._jobs.put(last)
        for _ in self._threads:
            self._jobs.put(None)

    async def close(self, last: Job | None = None) -> None:
        """Drop what is queued, run `last`, end the threads and wait for them without blocking the loop. Idempotent.

        A job that is running is waited for: a thread cannot be stopped from outside. If the wait is cancelled, the
        threads still end by themselves.
        """
        if not self._ending:
            self.drop_queued()
            self.end(last)
        await asyncio.wait(self._ended)
        self.join()  # the last act of each thread was to resolve its future

    def join(self) -> None:
        """Block until the threads have ended; for other threads than the loop's."""
        for thread in self._threads:
            thread.join()

    def _work(self, ended: "asyncio.Future[None]") -> None:
        ident = threading.get_ident()
        try:
            while (job := self._jobs.get()) is not None:
                self._busy[ident] = time.monotonic()
                job()
                del self._busy[ident]
        finally:  # also if a job breaks its promise, or `close` would wait for ever
            post(self._loop, settle, ended)


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Run `call(*arguments)` on the loop soon; dropped if the loop is closed, since nobody is left to hear it."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


class _Call(Generic[T]):
    """A call whose outcome somebody waits for, on the loop; once that is settled or cancelled, the call is let go."""

    __slots__ = ("_function", "_loop", "outcome")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> None:
        self._loop = loop
        self._function: Callable[[], T] | None = function
        self.outcome: asyncio.Future[T] = loop.create_future()
        self.outcome.add_done_callback(self._forget)

    def run(self) -> None:
        """On a thread."""
        function = self._function
        if function is None:
            return
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - re-raised in the task that waits for the outcome
            post(self._loop, _fail, self.outcome, error)
        else:
            post(self._loop, _succeed, self.outcome, value)

    def _forget(self, _outcome: object) -> None:
        self._function = None


def _succeed(outcome: "asyncio.Future[T]", value: T) -> None:
    if not outcome.done():
        outcome.set_result(value)


def _fail(outcome: "asyncio.Future[T]", error: BaseException) -> None:
    if outcome.done():
        return
    if not isinstance(error, Exception) or isinstance(error, StopIteration):  # a future takes no StopIteration
        failure = EngineFailed(f"loading stopped: {error!r}")
        failure.__cause__ = error
        error = failure
    outcome.set_exception(error)
