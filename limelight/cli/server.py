"""uvicorn over an engine. Importing it, and what Litestar imports for an application, takes half a second."""

import argparse
import logging
import os
import socket
import threading
from collections.abc import Callable

import anyio
import uvicorn

from limelight.cli.terminal import LAST_STEP_SECONDS, handled_signals, say
from limelight.engine import Engine
from limelight.http.app import create_app, create_metrics_app
from limelight.http.connections import ConnectionLimits, http_protocol
from limelight.http.settings import HttpSettings

LAST_FRAMES_SECONDS = 1
"""After the drain: time to tell the streams that are cut off, and then no more for clients that do not read."""
SECONDS_BEYOND = 20
"""After all that a stop may take: then the process ends even if its event loop does not turn."""


class Server(uvicorn.Server):
    """uvicorn over a bound socket, with our own signals: the first drains, the second ends at once.

    Args:
        tell: where lines for people go.
        metrics_listener: another bound socket, for the metrics alone.

    Attributes:
        aborted: whether it was told to end at once.
    """

    def __init__(
        self,
        engine: Engine,
        settings: HttpSettings,
        listener: socket.socket,
        options: argparse.Namespace,
        tell: Callable[[str], None] = say,
        metrics_listener: socket.socket | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(engine, settings=settings),
                log_config=None,
                log_level="warning" if options.log_level == "info" else options.log_level,
                access_log=options.log_level == "debug",
                server_header=False,
                timeout_keep_alive=options.timeout_keep_alive,
                http=http_protocol(_limits(options)),
                ws="none",
                ssl_certfile=options.ssl_certfile,
                ssl_keyfile=options.ssl_keyfile,
                lifespan="off",  # the engine is started and stopped here
                timeout_graceful_shutdown=options.drain_timeout + LAST_FRAMES_SECONDS,
            )
        )
        self.aborted = False
        self._engine = engine
        self._tell = tell
        self._listener = listener
        self._metrics = None if metrics_listener is None else _MetricsServer(engine, metrics_listener, options)
        self._drain_seconds: int = options.drain_timeout
        self._notice_seconds: int = options.drain_notice
        self._url = _url(options.host, self._listener, options.ssl_certfile is not None, settings.root_path)

    async def run(self) -> None:  # type: ignore[override]
        """Serves until it is told to end, or the engine fails."""
        first, second = anyio.Event(), anyio.Event()
        with handled_signals(lambda: (second if first.is_set() else first).set(), self._ends_without_the_loop):
            async with anyio.create_task_group() as group:
                group.start_soon(self._drain, first)
                group.start_soon(self._abort, second, group.cancel_scope)
                if self._metrics is not None:
                    group.start_soon(self._metrics.serve_until_told)
                await self._serve(sockets=[self._listener])
                if self._metrics is not None:
                    await self._metrics.end()
                group.cancel_scope.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says what to open, once the socket accepts."""
        await super().startup(sockets)
        print(f"Limelight serves {self._engine.model_name}: open {self._url}", flush=True)

    async def on_tick(self, counter: int) -> bool:
        """Ends the server with the engine: a process that can serve nobody must leave, so that it is restarted."""
        return await super().on_tick(counter) or self._engine.failure is not None

    async def _drain(self, told: anyio.Event) -> None:
        await told.wait()
        num_requests = self._engine.statistics().num_requests
        if num_requests:
            self._tell(
                f"stopping: {num_requests} running, up to {self._drain_seconds} s for them; once more to stop at once"
            )
        async with anyio.create_task_group() as group:
            group.start_soon(self._leave)
            has_finished = await self._engine.drain(self._drain_seconds, notice_seconds=self._notice_seconds)
        if not has_finished:
            # What still runs ends with an error frame, which uvicorn then has time to send.
            await self._engine.stop(LAST_STEP_SECONDS)

    async def _leave(self) -> None:
        await anyio.sleep(self._notice_seconds)
        self.should_exit = True  # closes the listening socket; what runs goes on for `timeout_graceful_shutdown`

    def _ends_without_the_loop(self, num_signals: int) -> None:
        """In the signal handler: whatever holds the event loop up, the process ends."""
        seconds = SECONDS_BEYOND
        if num_signals == 1:
            seconds += self._notice_seconds + self._drain_seconds
        timer = threading.Timer(seconds, _end_at_once, [self._tell])
        timer.daemon = True
        timer.start()

    async def _abort(self, told: anyio.Event, scope: anyio.CancelScope) -> None:
        await told.wait()
        self.aborted = True
        self._tell("stopping at once")
        await self._engine.stop(timeout_seconds=0)  # also ends the wait of a stop that is under way
        scope.cancel()


class _MetricsServer(uvicorn.Server):
    """`/metrics` alone, without a key, on a port of its own."""

    def __init__(self, engine: Engine, listener: socket.socket, options: argparse.Namespace) -> None:
        super().__init__(
            uvicorn.Config(
                create_metrics_app(engine),
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                http=http_protocol(_limits(options)),
                ws="none",
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._listener = listener
        self._ended = anyio.Event()

    async def serve_until_told(self) -> None:
        """Serve until `end`."""
        try:
            await self._serve(sockets=[self._listener])
        finally:
            self._ended.set()

    async def end(self) -> None:
        """Serve no longer."""
        self.should_exit = True
        await self._ended.wait()


def _end_at_once(tell: Callable[[str], None]) -> None:
    """On a thread of its own; the log may be held by what holds the loop, so yet another one tells it, for a moment."""

    def last_words() -> None:
        tell("the event loop does not turn, or a thread never ends: this process ends all the same")
        logging.shutdown()

    telling = threading.Thread(target=last_words, daemon=True)
    telling.start()
    telling.join(LAST_FRAMES_SECONDS)
    os._exit(1)


def _limits(options: argparse.Namespace) -> ConnectionLimits:
    return ConnectionLimits(
        max_connections=options.max_connections, head_seconds=options.head_timeout, send_seconds=options.send_timeout
    )


def _url(host: str, listener: socket.socket, secure: bool, root_path: str) -> str:
    """An address that a browser on this machine can open."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (read, not bound)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"{'https' if secure else 'http'}://{shown}:{listener.getsockname()[1]}{root_path}"
