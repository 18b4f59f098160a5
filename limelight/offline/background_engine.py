"""An engine on an event loop of its own in one daemon thread, for callers that have no loop or must not use theirs.

A daemon thread, because a program that forgets to stop it must still end; everything that waits can be interrupted.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
import msgspec

from limelight.engine import Engine
from limelight.errors import EngineNotRunning
from limelight.generation import Delta, Generation, GenerationRequest, SamplingParams

T = TypeVar("T")

EXIT_SECONDS = 2.0
"""How long the exit of the process may wait for an engine that nobody stopped."""


class BackgroundEngine:
    """Starts `engine` on a new thread and runs requests on it.

    Args:
        engine: not started yet; from now on it belongs to the thread's loop.
        num_at_once: live requests at the most, over all callers together; the rest wait here, outside the engine. By
            default twice the seats, which keeps every seat busy: more would only hold memory and could be refused.

    Attributes:
        model_name, memory_plan, default_sampling: the engine's own, read on its loop once it has started.

    Raises:
        LimelightError: the engine does not start.
        OSError, RuntimeError: the system has no thread or file descriptor left to give.
    """

    model_name: str
    memory_plan: str
    default_sampling: SamplingParams

    def __init__(self, engine: Engine, *, num_at_once: int | None = None) -> None:
        self._engine = engine
        self._asked_at_once = num_at_once
        self._stopping = asyncio.Event()
        self._submitting = threading.Lock()
        self._ended = False  # guarded by `_submitting`
        loop_ready: SimpleQueue[asyncio.AbstractEventLoop | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=_run_loop, args=[loop_ready], name="limelight-offline", daemon=True)
        self._thread.start()
        loop = loop_ready.get()
        if isinstance(loop, BaseException):
            self._thread.join()
            raise loop
        self._loop = loop
        # A daemon thread that the interpreter cuts off leaves tasks behind, which complain.
        weakref.finalize(self, _stop_at_exit, self._thread, loop, self._stopping)
        started: SimpleQueue[None] = SimpleQueue()
        self._life = asyncio.run_coroutine_threadsafe(self._live(started), self._loop)
        self._life.add_done_callback(lambda _: started.put(None))
        try:
            started.get()
        except BaseException:
            self.request_stop()
            raise
        if self._life.done():
            self._thread.join()
            self._life.result()

    @property
    def engine(self) -> Engine:
        """The engine, for what may be read from any thread: `config`, `state`, `failure`."""
        return self._engine

    def run(self, requests: Sequence[GenerationRequest]) -> Generator[tuple[int, Generation], None, None]:
        """Yields (position in `requests`, generation) as they finish; closing the iterator cancels what still runs.

        Raises:
            LimelightError: one of them failed; the others are cancelled.
        """
        return self._yielded_by(lambda send: self._generate_all(requests, send))

    def stream(self, request: GenerationRequest) -> Generator[Delta, None, None]:
        """Yields the deltas of one request as they come; closing the iterator cancels it.

        Raises:
            LimelightError: the request failed; what it had generated has been yielded.
        """
        streaming = msgspec.structs.replace(request, streams=True)
        return self._yielded_by(lambda send: self._stream(streaming, send))

    def load_adapter(self, name: str, path: str) -> None:
        """Loads a LoRA adapter and waits for it.

        Raises:
            LimelightError: it cannot be loaded.
        """

        async def load(_send: Callable[[None], None]) -> None:
            await self._engine.load_adapter(name, path)

        for _ in self._yielded_by(load):
            pass

    def request_stop(self) -> None:
        """Asks the engine to stop and returns at once; from any thread, any number of times."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        """Stops the engine and waits until it has given back its memory and threads."""
        self.request_stop()
        self._thread.join()

    def _yielded_by(
        self, produce: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]
    ) -> Generator[T, None, None]:
        """Runs `produce(send)` on the loop and yields here, on the caller's thread, what it sends."""
        sent: SimpleQueue[T | _Ended] = SimpleQueue()
        if not self._thread.is_alive():  # threads do not survive a fork
            raise EngineNotRunning("this engine has been stopped, or belongs to the parent process; make a new one")
        with self._submitting:
            if self._ended:
                raise EngineNotRunning("this engine has been stopped; make a new one")
            running = asyncio.run_coroutine_threadsafe(produce(sent.put), self._loop)
        running.add_done_callback(lambda _: sent.put(_Ended()))
        try:
            while not isinstance(item := sent.get(), _Ended):
                yield item
            running.result()
        except concurrent.futures.CancelledError:
            raise EngineNotRunning("the engine was stopped while it was generating") from None
        finally:
            running.cancel()

    async def _live(self, started: SimpleQueue[None]) -> None:
        """The engine's whole life, in one task."""
        try:
            async with self._engine:
                self.model_name = self._engine.model_name
                self.memory_plan = self._engine.model.memory_plan
                self.default_sampling = self._engine.default_sampling
                usual = min(self._engine.config.max_num_requests, 2 * self._engine.model.capacity.num_seats)
                self._num_at_once = usual if self._asked_at_once is None else self._asked_at_once
                self._places = asyncio.Semaphore(self._num_at_once)
                started.put(None)
                await self._stopping.wait()
        finally:
            with self._submitting:
                self._ended = True
            # Behind what has been submitted until now, so that the runner finds its tasks and cancels them.
            self._loop.call_soon(self._loop.stop)

    async def _stream(self, request: GenerationRequest, send: Callable[[Delta], None]) -> None:
        async with self._places, self._engine.open(request) as stream:
            while deltas := await stream.next_deltas():
                for delta in deltas:
                    send(delta)

    async def _generate_all(
        self, requests: Sequence[GenerationRequest], send: Callable[[tuple[int, Generation]], None]
    ) -> None:
        remaining = iter(enumerate(requests))

        async def work() -> None:
            for index, request in remaining:
                async with self._places, self._engine.open(request) as stream:
                    send((index, await stream.result()))

        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(self._num_at_once, len(requests))):
                    group.start_soon(work)
        except ExceptionGroup as failures:
            raise _first(failures) from None


class _Ended:
    """Put last into a queue: nothing follows."""


def _run_loop(ready: SimpleQueue[asyncio.AbstractEventLoop | BaseException]) -> None:
    with asyncio.Runner() as runner:  # on leaving: cancels what is left, ends executors, closes the loop
        try:
            loop = runner.get_loop()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the loop
            ready.put(error)
            return
        ready.put(loop)
        loop.run_forever()


def _stop_at_exit(thread: threading.Thread, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Stops a live engine while the interpreter is whole, and waits for it, though not for long.

    The thread holds the engine, so this finds it alive at the exit of the process only, and never in a forked child.
    """
    if thread.is_alive() and thread is not threading.current_thread():
        with contextlib.suppress(RuntimeError):  # the loop was closed just now
            loop.call_soon_threadsafe(stopping.set)
        thread.join(EXIT_SECONDS)


def _first(failures: ExceptionGroup) -> Exception:
    """The first error that is no group."""
    error: Exception = failures
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
