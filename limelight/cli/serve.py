"""The server process: socket, start-up lines, signals, drain. The engine and the HTTP server share one event loop."""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Literal

import anyio
import msgspec
import uvicorn

from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.settings import allowed_hosts, api_keys, engine_config, is_loopback
from limelight.cli.terminal import as_options, interruptible_by_the_system, say
from limelight.config import EngineConfig
from limelight.engine import Engine, ModelLoader
from limelight.errors import ConfigError, LimelightError
from limelight.http.app import create_app
from limelight.http.settings import HttpSettings

BACKLOG = 2048
"""Connections that the kernel holds while the loop is busy."""

IDLE_CONNECTION_SECONDS = 75
"""Longer than the usual proxy or client keeps a connection for reuse, which otherwise may find it closed just then."""

LAST_FRAMES_SECONDS = 1
"""After the drain: time to tell the streams that are cut off, and then no more for clients that do not read."""


class PortUnavailable(LimelightError):
    """The address cannot be listened on."""


def serve(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """Serves until a signal or the engine's failure; returns the exit code.

    Raises:
        ConfigError: an option is wrong.
        PortUnavailable: the address is in use or not ours.
        ModelError: the model cannot be loaded.
    """
    config = engine_config(options)
    settings = http_settings(options)
    _check_certificate(options.ssl_certfile, options.ssl_keyfile)
    _configure_logging(options.log_level)
    with contextlib.closing(bind(options.host, options.port)) as listener:
        if not is_loopback(options.host) and not settings.api_keys:
            say(f"warning: other machines can reach {options.host}, and without --api-key anybody may use the model")
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(config, loader, settings, listener, options))


def http_settings(options: argparse.Namespace) -> HttpSettings:
    """The HTTP application's settings.

    Raises:
        ConfigError: a value is out of range.
    """
    return HttpSettings(
        api_keys=api_keys(options.api_key),
        admin_keys=api_keys(options.admin_key, "--admin-key"),
        adapter_folders=tuple(str(Path(folder).absolute()) for folder in options.lora_folder),
        allowed_hosts=allowed_hosts(options.host, options.allowed_host),
        cors_origins=tuple(options.cors_origin),
        unknown_fields=options.unknown_fields,
        header_wait_seconds=options.header_wait,
        keep_alive_seconds=options.keep_alive or None,
        root_path=options.root_path,
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not listening yet: while the model loads, clients are refused at once.

    Raises:
        PortUnavailable: names the address, the reason and the option.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortUnavailable(f"cannot listen on --host {host}: {error.strerror or error}") from None
    try:
        if sys.platform != "win32":  # there it would let two servers share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _unavailable(host, port, error) from None
    return listener


async def _serve(
    config: EngineConfig,
    loader: ModelLoader | None,
    settings: HttpSettings,
    listener: socket.socket,
    options: argparse.Namespace,
) -> int:
    progress = LoadingProgress()
    engine = Engine(config, loader=loader, report=progress)
    with interruptible_by_the_system():
        try:
            await engine.start()
        finally:
            progress.close()
    try:
        if engine.model.memory_plan:
            say(as_options(engine.model.memory_plan))
        recommended = msgspec.structs.asdict(engine.model.defaults)
        if values := ", ".join(f"{name} {value}" for name, value in recommended.items() if value is not None):
            say(f"sampling     {values} where a request says nothing")
        try:
            listener.listen(BACKLOG)
        except OSError as error:  # somebody else was quicker, while we loaded
            raise _unavailable(options.host, options.port, error) from None
        server = Server(engine, settings, listener, options)
        await server.run()
    finally:
        await engine.stop()
    return 0 if engine.failure is None else 1


class Server(uvicorn.Server):
    """uvicorn over a bound socket, with our own signals: the first drains, the second ends at once."""

    def __init__(
        self, engine: Engine, settings: HttpSettings, listener: socket.socket, options: argparse.Namespace
    ) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(engine, settings=settings),
                log_config=None,
                log_level="warning" if options.log_level == "info" else options.log_level,
                access_log=options.log_level == "debug",
                server_header=False,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS,
                http=_http_protocol(),
                ws="none",
                ssl_certfile=options.ssl_certfile,
                ssl_keyfile=options.ssl_keyfile,
                lifespan="off",  # the engine is started and stopped here
                timeout_graceful_shutdown=options.drain_timeout + LAST_FRAMES_SECONDS,
            )
        )
        self._engine = engine
        self._listener = listener
        self._drain_seconds: int = options.drain_timeout
        self._url = _url(options.host, listener, options.ssl_certfile is not None, settings.root_path)

    async def run(self) -> None:  # type: ignore[override]
        """Serves until it is told to end, or the engine fails."""
        first, second = anyio.Event(), anyio.Event()
        with _signals(lambda: (second if first.is_set() else first).set()):
            async with anyio.create_task_group() as group:
                group.start_soon(self._drain, first)
                group.start_soon(self._abort, second, group.cancel_scope)
                await self._serve(sockets=[self._listener])
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
            say(f"stopping: {num_requests} running, up to {self._drain_seconds} s for them; once more to stop at once")
        self.should_exit = True  # closes the listening socket; what runs goes on for `timeout_graceful_shutdown`
        if not await self._engine.drain(self._drain_seconds):
            await self._engine.stop()  # what still runs ends with an error frame, which uvicorn then has time to send

    async def _abort(self, told: anyio.Event, scope: anyio.CancelScope) -> None:
        await told.wait()
        say("stopping at once")
        scope.cancel()


def _unavailable(host: str, port: int, error: OSError) -> PortUnavailable:
    advice = "choose another --port (0 takes a free one)" if port else "choose another --host"
    return PortUnavailable(f"cannot listen on {host} port {port}: {error.strerror or error}; {advice}")


def _configure_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether to log it: uvicorn reports a request that we cut off as an error of the application."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _http_protocol() -> "type[asyncio.Protocol] | Literal['h11']":
    try:
        from limelight.http.uvicorn_protocol import BoundedHttpToolsProtocol
    except ImportError:
        return "h11"  # which has a bound of its own
    return BoundedHttpToolsProtocol


@contextlib.contextmanager
def _signals(handle: Callable[[], None]) -> Iterator[None]:
    """Calls `handle` on the loop for each SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()

    def received(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(handle)

    before = {number: signal.signal(number, received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _url(host: str, listener: socket.socket, secure: bool, root_path: str) -> str:
    """An address that a browser on this machine can open."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (read, not bound)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"{'https' if secure else 'http'}://{shown}:{listener.getsockname()[1]}{root_path}"


def _check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Finds a wrong TLS file before the model is loaded.

    Raises:
        ConfigError: names the option and what is wrong.
    """
    if certfile is None:
        if keyfile is not None:
            raise ConfigError("--ssl-keyfile is given without --ssl-certfile; give both")
        return
    for option, path in (("--ssl-certfile", certfile), ("--ssl-keyfile", keyfile)):
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{option}: there is no file {path}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--ssl-certfile {certfile} and --ssl-keyfile {keyfile} do not go together: {error}"
        ) from None
