"""A server over a scripted model, on a real socket and in a thread of its own: for any client, front end or browser."""

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar, Unpack

from limelight.config import EngineOptions
from limelight.engine import Engine
from limelight.telemetry.statistics import EngineStatistics
from limelight.testing.answers import ANSWER_FORMAT, Answers
from limelight.testing.model import scripted_engine
from limelight.testing.script import Script

if TYPE_CHECKING:
    from limelight.http import HttpSettings

_T = TypeVar("_T")
_POLL_SECONDS = 0.005


class LiveServer:
    """A running server; made by `live_server`. Its methods may be called from any thread but the server's own.

    Attributes:
        url: such as `http://127.0.0.1:40123`, without a slash at the end.
        engine: belongs to the server's event loop: call its methods by `call`.
    """

    def __init__(self, url: str, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.engine = engine
        self._loop = loop

    def call(self, function: Callable[[], _T]) -> _T:
        """What `function` gives, or raises, in the server's event loop."""
        result: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised where the function was called
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result()

    def statistics(self) -> EngineStatistics:
        """Live requests, seats and pages, now."""
        return self.call(self.engine.statistics)

    def wait_until(self, condition: Callable[[EngineStatistics], bool], *, seconds: float = 10.0) -> None:
        """Wait for the server to be in a state.

        Raises:
            AssertionError: it is not after `seconds`; tells the state that it is in.
        """
        deadline = time.monotonic() + seconds
        while not condition(statistics := self.statistics()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not after {seconds:g} s: {statistics}")
            time.sleep(_POLL_SECONDS)

    def wait_until_idle(self, *, seconds: float = 10.0) -> None:
        """Wait until nothing of any request is left: no task, no seat, no page that one holds.

        Raises:
            AssertionError: something is left after `seconds`; tells what.
        """
        self.wait_until(_is_idle, seconds=seconds)


@contextlib.contextmanager
def live_server(
    script: Script | None = None, *, settings: "HttpSettings | None" = None, **options: Unpack[EngineOptions]
) -> Iterator[LiveServer]:
    """A server for the time of the block. Hangs of `Answers` are released at the end, and running requests ended.

    Args:
        script: what it answers; default: "Hello!" to everything.
        settings: keys, origins, how streams behave; default: those of a server on loopback.
        options: of the engine, such as `max_num_requests=1` for a server that is soon full.
    """
    answers = Answers() if script is None else script
    engine = scripted_engine(answers, answer_format=ANSWER_FORMAT, **options)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = (
            concurrent.futures.Future()
        )
        thread = threading.Thread(
            target=_run, args=(engine, settings, listener, started), name="limelight-test-server", daemon=True
        )
        thread.start()
        loop, ending = started.result()
        try:
            yield LiveServer(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, loop)
        finally:
            if isinstance(answers, Answers):
                answers.release()
            loop.call_soon_threadsafe(ending.set)
            thread.join()


def _run(
    engine: Engine,
    settings: "HttpSettings | None",
    listener: socket.socket,
    started: "concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    try:
        asyncio.run(_serve(engine, settings, listener, started))
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _serve(
    engine: Engine,
    settings: "HttpSettings | None",
    listener: socket.socket,
    started: "concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    import uvicorn  # with the web framework half a second, which tests without a server need not spend

    from limelight.http import create_app
    from limelight.http.connections import ConnectionLimits, http_protocol

    config = uvicorn.Config(
        create_app(engine, settings=settings),
        http=http_protocol(ConnectionLimits()),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    ending = asyncio.Event()
    async with engine:
        await server.startup([listener])
        started.set_result((asyncio.get_running_loop(), ending))
        await ending.wait()
        await engine.stop()  # streams that still run end with an error frame, and then there is nothing to wait for
        await server.shutdown([listener])


def _is_idle(statistics: EngineStatistics) -> bool:
    return (
        statistics.num_requests == 0
        and statistics.num_free_seats == statistics.num_seats
        and statistics.num_free_pages == statistics.num_pages
    )
