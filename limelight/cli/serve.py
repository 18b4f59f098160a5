"""The server process: options, socket, start-up lines. The engine and the HTTP server share one event loop."""

import argparse
import contextlib
import gc
import logging
import os
import socket
import ssl
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from limelight.cli.event_loop import run
from limelight.cli.listening import PortUnavailable, bind, room_for_connections, unavailable
from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.log_format import configure_logging
from limelight.cli.settings import allowed_hosts, api_keys, engine_config, is_loopback
from limelight.cli.telemetry import ExportSettings, Tell, export_settings, export_warnings, exporting, observed_engine
from limelight.cli.terminal import LAST_STEP_SECONDS, as_options, interruptible_by_the_system, say
from limelight.config import EngineConfig
from limelight.engine import Engine, ModelLoader
from limelight.errors import ConfigError
from limelight.http.settings import HttpSettings

if TYPE_CHECKING:
    from limelight.cli.exporting import Exporting
    from limelight.cli.server import Server

logger = logging.getLogger(__name__)

WARNING = "warning: "
"""How lines begin that tell of a danger."""
BACKLOG = 2048
"""Connections that the kernel holds while the loop is busy."""


def serve(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """Serves until a signal or the engine's failure; returns the exit code.

    Raises:
        ConfigError: an option is wrong.
        PortUnavailable: the address is in use or not ours.
        ModelError: the model cannot be loaded.
    """
    config = msgspec.structs.replace(engine_config(options), loop_stall_seconds=options.loop_stall)
    settings = http_settings(options)
    exports = export_settings(options.otlp_endpoint, os.environ)
    options.max_connections = room_for_connections(options.max_connections)
    _check_certificate(options.ssl_certfile, options.ssl_keyfile)
    configure_logging(options.log_level, options.log_format)
    tell = say if options.log_format == "text" else _log
    with contextlib.closing(bind(options.host, options.port)) as listener:
        if not (is_loopback(options.host) or settings.api_keys or settings.key_file):
            tell(f"warning: other machines can reach {options.host}, and without --api-key anybody may use the model")
        with contextlib.ExitStack() as stack:
            listeners = [listener]
            if options.metrics_port is not None:
                listeners.append(stack.enter_context(contextlib.closing(_bind_for_metrics(options))))
            code, leaves_threads = run(_observed(config, loader, settings, listeners, options, exports, tell))
    if leaves_threads:  # an orderly exit would meet a thread in native code that nothing can stop
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code


def _bind_for_metrics(options: argparse.Namespace) -> socket.socket:
    """The socket of `--metrics-port`.

    Raises:
        PortUnavailable: names the option.
    """
    try:
        return bind(options.metrics_host, options.metrics_port)
    except PortUnavailable as error:
        raise PortUnavailable(f"--metrics-host, --metrics-port: {error.message}") from None


def http_settings(options: argparse.Namespace) -> HttpSettings:
    """The HTTP application's settings.

    Raises:
        ConfigError: a value is out of range.
    """
    return HttpSettings(
        api_keys=api_keys(options.api_key),
        admin_keys=api_keys(options.admin_key, "--admin-key"),
        key_file=options.key_file,
        private_caches=options.private_caches,
        share_header=options.share_header,
        adapter_folders=tuple(str(Path(folder).absolute()) for folder in options.lora_folder),
        allowed_hosts=allowed_hosts(options.host, options.allowed_host),
        cors_origins=tuple(options.cors_origin),
        body_timeout_seconds=options.body_timeout,
        min_body_bytes_per_second=options.min_body_rate,
        body_memory_bytes=options.body_memory,
        unknown_fields=options.unknown_fields,
        trust_request_chat_template=options.trust_request_chat_template,
        header_wait_seconds=options.header_wait,
        reasoning_field=options.reasoning_field,
        keep_alive_seconds=options.keep_alive or None,
        resume_stream_bytes=options.resume_stream_memory,
        resume_memory_bytes=options.resume_memory,
        resume_keep_seconds=options.resume_keep,
        max_grace_seconds=options.max_grace,
        max_stored_responses=options.max_stored_responses,
        response_store_bytes=options.response_store_memory,
        response_max_age_seconds=options.response_max_age,
        root_path=options.root_path,
    )


async def _observed(
    config: EngineConfig,
    loader: ModelLoader | None,
    settings: HttpSettings,
    listeners: list[socket.socket],
    options: argparse.Namespace,
    exports: ExportSettings | None,
    tell: Tell,
) -> tuple[int, bool]:
    """Serve, with traces and metrics exported if they are to be."""
    content = bool(options.trace_content)
    for line in export_warnings(options.otlp_endpoint, trace_content=content, settings=exports):
        tell(line)
    async with exporting(exports, tell) as exporter:
        return await _serve(config, loader, settings, listeners, options, exporter, tell)


async def _serve(
    config: EngineConfig,
    loader: ModelLoader | None,
    settings: HttpSettings,
    listeners: list[socket.socket],
    options: argparse.Namespace,
    exporter: "Exporting | None",
    tell: Tell,
) -> tuple[int, bool]:
    """The exit code, and whether threads are left that never end."""
    progress = LoadingProgress(tell=tell)
    made: Future[Server] | None = None

    def report(stage: str, fraction: float | None) -> None:
        nonlocal made
        # Not earlier: until its first report the loader imports, and two threads that import are no faster than one.
        made = made or beside.submit(_make_server, engine, settings, listeners, options, tell)
        progress(stage, fraction)

    engine = observed_engine(config, loader, report, exporter)
    with interruptible_by_the_system(), ThreadPoolExecutor(1, thread_name_prefix="limelight-server") as beside:
        try:
            await engine.start()
        finally:
            progress.close()
    gc.freeze()  # a collection need not walk the model each time: that takes tens of milliseconds of the loop
    try:
        if engine.model.memory_plan:
            tell(as_options(engine.model.memory_plan))
        recommended = msgspec.structs.asdict(engine.model.defaults)
        if values := ", ".join(f"{name} {value}" for name, value in recommended.items() if value is not None):
            tell(f"sampling     {values} where a request says nothing")
        try:
            for listener in listeners:
                listener.listen(BACKLOG)
        except OSError as error:  # somebody else was quicker, while we loaded
            raise unavailable(options.host, options.port, error) from None
        server = made.result() if made else _make_server(engine, settings, listeners, options, tell)
        try:
            await server.run()
        finally:
            if server.aborted and exporter is not None:
                exporter.hurry()
    finally:
        await engine.stop(timeout_seconds=LAST_STEP_SECONDS)  # or less, if it has been told so before
    return 0 if engine.failure is None else 1, bool(engine.left_behind)


def _make_server(
    engine: Engine, settings: HttpSettings, listeners: list[socket.socket], options: argparse.Namespace, tell: Tell
) -> "Server":
    from limelight.cli.server import Server  # imports the web framework, which takes a third of a second

    return Server(engine, settings, listeners[0], options, tell, *listeners[1:])


def _log(line: str) -> None:
    """Tells people something where every line is a record."""
    level = logging.WARNING if line.startswith(WARNING) else logging.INFO
    logger.log(level, "%s", line.removeprefix(WARNING))


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
