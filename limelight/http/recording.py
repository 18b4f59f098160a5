"""A stream that does not depend on its reader: its frames are made in the background and kept for whoever reads them.

The engine owns the task, so it ends when the stream ends, when somebody cancels it, when its last reader has been away
for too long, or with the engine; in every case the log ends with the endpoint's own terminal frame.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from limelight.engine import BackgroundTask, Engine
from limelight.errors import EngineNotRunning, LimelightError, RequestCancelled, RequestExpired
from limelight.generation import GenerationRequest
from limelight.http.errors import error_body, log_bug, log_failure
from limelight.http.exchange import Exchange
from limelight.http.frame_log import FrameLog
from limelight.http.prompt_progress import progress_line
from limelight.http.request_id import only_request_id, request_id
from limelight.http.sse import FrameWriter
from limelight.http.streams import Event, Events, open_streams, read_together
from limelight.stream import Stream
from limelight.telemetry.timeline import Delivery


class Recording:
    """One recorded stream.

    Args:
        log: empty; where the frames go.
        scope: of the HTTP request that asked for it; its id is all that is kept.
        header_wait_seconds: an error before the first event and within this time is an error of the whole answer.
        grace_seconds: it is cancelled when it has had readers and then none for so long; None: never.
        ended: called once, when the log is closed.

    Attributes:
        log: what readers read. Each frame is one part that the writer yielded, so frame numbers are event numbers.
        num_readers: those in a `reader` block.
        span_context: of the exchange that asked for it.
        error: what its last frame tells, if that is one; None as long as it runs.
    """

    def __init__(
        self,
        log: FrameLog,
        scope: Any,
        *,
        header_wait_seconds: float,
        grace_seconds: float | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.log = log
        self._scope = only_request_id(scope)
        self.span_context = INVALID_SPAN_CONTEXT
        self.error: LimelightError | None = None
        self._header_wait_seconds = header_wait_seconds
        self._grace_seconds = grace_seconds
        self._grace: asyncio.TimerHandle | None = None
        self._ended = ended
        self.num_readers = 0
        self._streams: Sequence[Stream] = ()
        self._prompt_done = b""
        self._begun = asyncio.Event()
        self._refusal: LimelightError | None = None
        self._cancelled_by: LimelightError | None = None
        self._task: BackgroundTask | None = None

    def start(
        self, engine: Engine, requests: Sequence[GenerationRequest], writer: FrameWriter, exchange: Exchange
    ) -> None:
        """Begin to record what `writer` makes of the answers to `requests`; when it has ended, only the log is kept.

        Args:
            exchange: that asked for it.

        Raises:
            EngineNotRunning, EngineFailed: there is nothing that could serve it.
        """
        self.span_context = exchange.span_context
        work = partial(self._run, engine, requests, writer, exchange)
        self._task = engine.run_in_background(work, f"the stream of request {request_id(self._scope)}")

    async def begun(self) -> None:
        """Until it is certain that there will be frames: from then on every error is a frame of its own.

        Raises:
            LimelightError: the requests failed before that; there are no frames.
        """
        await self._begun.wait()
        if self._refusal is not None:
            raise self._refusal.again()

    async def wait(self) -> None:
        """Until it has ended."""
        assert self._task is not None, "it has been started"
        await self._task.wait()

    def cancel(self, reason: LimelightError | None = None) -> None:
        """Abort the requests; readers find `reason` in the terminal frame. Idempotent, never waits."""
        assert self._task is not None, "it has been started"
        if self._cancelled_by is None:
            self._cancelled_by = reason or RequestCancelled("The stream was cancelled")
        for stream in self._streams:
            stream.abort(self._cancelled_by.again())
        self._task.cancel()

    @property
    def answering(self) -> bool:
        """Whether the first event is there."""
        return bool(self._prompt_done)

    def progress_line(self) -> bytes:
        """A comment line about the prompt, as `progress_line` gives it; from the first event on the same one."""
        return self._prompt_done or progress_line(self._streams)

    @contextmanager
    def reader(self, delivery: Delivery) -> Iterator[None]:
        """Count as a reader inside the block; when the last one leaves, the grace time begins.

        Args:
            delivery: how it takes the frames: that of the newest reader is the requests'.
        """
        self.num_readers += 1
        self._stop_grace()
        for stream in self._streams:
            stream.timeline.delivery = delivery
        try:
            yield
        finally:
            self.num_readers -= 1
            if self.num_readers == 0 and not self.log.closed and self._grace_seconds is not None:
                loop = asyncio.get_running_loop()
                self._grace = loop.call_later(self._grace_seconds, self._abandon, self._grace_seconds)

    def _abandon(self, seconds: float) -> None:
        self.cancel(RequestExpired(f"The stream was aborted because nobody had read it for {seconds:g} seconds"))

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    async def _run(
        self, engine: Engine, requests: Sequence[GenerationRequest], writer: FrameWriter, exchange: Exchange
    ) -> None:
        try:
            async with open_streams(engine, requests, exchange) as streams, read_together(streams) as events:
                self._streams = streams
                await self._record(events, writer)
        except LimelightError as error:
            if self._begun.is_set():  # else whoever asked hears of it
                log_failure(error, self._scope)
            self._fail(error, writer)
        except Exception as error:  # noqa: BLE001 - a bug, told in the log
            log_bug("request %s failed while it was recorded", error, self._scope)
            self._fail(LimelightError("The server failed while it wrote this answer"), writer)
        except anyio.get_cancelled_exc_class():
            stopped = engine.failure or EngineNotRunning("the engine was stopped")
            self._fail(self._cancelled_by or stopped, writer)
            raise
        finally:
            self._stop_grace()
            self._streams = ()
            self.log.close()
            self._begun.set()
            if self._ended is not None:
                self._ended()

    async def _record(self, events: Events, writer: FrameWriter) -> None:
        event: Event | None = None
        with anyio.move_on_after(self._header_wait_seconds) as wait:
            event = await events.next()
        self.log.append(writer.opening())
        self._begun.set()
        if wait.cancelled_caught:
            event = await events.next()
        self._prompt_done = progress_line(self._streams)
        while event is not None:
            self.log.append(writer.frames(event))
            event = await events.next()
        self.log.append(writer.ending())
        self.log.close()

    def _fail(self, error: LimelightError, writer: FrameWriter) -> None:
        if not self._begun.is_set():
            self._refusal = error
        elif not self.log.closed:
            self.error = error
            self.log.append(writer.failure(error_body(error, self._scope)))
