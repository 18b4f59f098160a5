"""Where the process sends its traces and metrics: the option and the variables of OpenTelemetry, checked.

Imports no SDK: a process that exports nothing does not pay for one. What is set up is in `exporting.py`.
"""

import ipaddress
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit, urlunsplit

from limelight.config import EngineConfig
from limelight.engine import Engine, ModelLoader, Report
from limelight.errors import ConfigError
from limelight.quoting import explanation, quoted

if TYPE_CHECKING:
    from limelight.cli.exporting import Exporting

Signal = Literal["traces", "metrics"]
Tell = Callable[[str], None]
"""Where lines for people go."""

OTLP, CONSOLE = "otlp", "console"
DEFAULT_ENDPOINT = "http://localhost:4318"
PROTOCOL = "http/protobuf"
BATCH_SIZE = 64
"""Spans in one request. Encoding takes 27 us a span, in which the loop waits for the interpreter: 512 take 14 ms."""
QUEUE_SIZE = 2048
"""Spans that wait to be sent, as OpenTelemetry has it; more are dropped."""

MAX_MILLISECONDS = 10**8
_MILLISECONDS = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
)
"""What the SDK reads by itself, and takes the default for with a traceback, or breaks at."""

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_URL = re.compile(r"""[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+""")  # RFC 3986, section 2
_SIGNAL_PATH = re.compile(r"/v1/(traces|metrics)/?$")


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """What is exported, and where.

    Attributes:
        traces_url, metrics_url: where OTLP goes; None: that signal is not exported by OTLP.
        traces_on_console, metrics_on_console: print them, for tries.
        batch_size, queue_size: spans in a request at the most, and spans that may wait.
        is_explicit: an option asks for it, and not only variables.
    """

    traces_url: str | None
    metrics_url: str | None
    traces_on_console: bool
    metrics_on_console: bool
    batch_size: int
    queue_size: int
    is_explicit: bool

    @property
    def exports_traces(self) -> bool:
        """Whether spans are wanted at all."""
        return self.traces_url is not None or self.traces_on_console

    @property
    def exports_metrics(self) -> bool:
        """Whether OpenTelemetry's metrics are; Prometheus' are at /metrics in any case."""
        return self.metrics_url is not None or self.metrics_on_console


def export_settings(endpoint: str | None, environment: Mapping[str, str]) -> ExportSettings | None:
    """What the option `--otlp-endpoint` and the variables ask for; None: nothing is exported.

    The variables are those of OpenTelemetry's specification; a signal's own wins over the general one, the option over
    both. Those that say how to export (headers, certificates, timeouts, sampling) are left to the SDK.

    Raises:
        ConfigError: an address, an exporter, a protocol, a size or a time is wrong; it names the option or the
            variable.
    """
    given = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_") and value.strip()}
    if given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    traces, metrics = _exporters("traces", endpoint, given), _exporters("metrics", endpoint, given)
    if not traces and not metrics:
        return None
    for variable in _MILLISECONDS:
        _size(variable, 1, given, MAX_MILLISECONDS)
    queue_size = _size("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SIZE, given)
    batch_size = _size("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(BATCH_SIZE, queue_size), given)
    if batch_size > queue_size:
        raise ConfigError(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {batch_size}, and only {queue_size} spans may wait; make it smaller, "
            "or OTEL_BSP_MAX_QUEUE_SIZE larger"
        )
    return ExportSettings(
        traces_url=_url("traces", endpoint, given) if OTLP in traces else None,
        metrics_url=_url("metrics", endpoint, given) if OTLP in metrics else None,
        traces_on_console=CONSOLE in traces,
        metrics_on_console=CONSOLE in metrics,
        batch_size=batch_size,
        queue_size=queue_size,
        is_explicit=endpoint is not None,
    )


@asynccontextmanager
async def exporting(settings: ExportSettings | None, tell: Tell) -> AsyncIterator["Exporting | None"]:
    """Within the block the SDK is set up, if anything is exported; at its end what waits is sent, in bounded time.

    Where somebody else has set up the SDK in this process, what only variables ask for is left to that.

    Raises:
        ConfigError: the SDK refuses a variable.
    """
    if settings is None:
        yield None
        return
    exporter = _set_up(settings)
    if exporter is None:
        yield None
        return
    for signal, url in (("traces", settings.traces_url), ("metrics", settings.metrics_url)):
        if url is not None:
            tell(f"{signal:<12} to {shown_url(url)}")
    try:
        yield exporter
    finally:
        if (lost := await exporter.close()) is not None:
            tell(f"warning: {lost}")


def _set_up(settings: ExportSettings) -> "Exporting | None":
    """The SDK; None: somebody else has set it up.

    Raises:
        ConfigError: it refuses a variable. It does so while it is imported, too.
    """
    try:
        from limelight.cli.exporting import Exporting, has_global_provider

        is_first = not has_global_provider()
        if not is_first and not settings.is_explicit:
            return None
        exporter = Exporting(settings)
        if is_first:
            exporter.make_global()
    except (ValueError, StopIteration) as error:
        reason = explanation(error) or "a variable OTEL_PYTHON_... names what is not installed"
        raise ConfigError(f"OpenTelemetry cannot be set up: {reason}") from error
    return exporter


def observed_engine(
    config: EngineConfig, loader: ModelLoader | None, report: Report, exporter: "Exporting | None"
) -> Engine:
    """An engine whose spans and metrics go to `exporter`, and whose registry tells what becomes of them."""
    if exporter is None:
        return Engine(config, loader=loader, report=report)
    engine = Engine(
        config,
        loader=loader,
        report=report,
        tracer_provider=exporter.tracer_provider,
        meter_provider=exporter.meter_provider,
    )
    exporter.register(engine.metrics_registry)
    return engine


def export_warnings(endpoint: str | None, *, trace_content: bool, settings: ExportSettings | None) -> Iterator[str]:
    """What to say at the start: options without effect, and prompts and answers that leave the process."""
    if endpoint is not None and settings is None:
        yield "warning: --otlp-endpoint has no effect, as variables of OpenTelemetry (OTEL_SDK_DISABLED) say otherwise"
    if not trace_content:
        return
    if settings is None or not settings.exports_traces:
        yield "warning: --trace-content has no effect, as no traces are exported"
        return
    where = "the console" if settings.traces_url is None else shown_url(settings.traces_url)
    yield f"warning: --trace-content sends prompts and answers to {where}: whoever sees the traces reads them"


def shown_url(url: str) -> str:
    """`url` for logs: without the password and the query, which may hold keys."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _exporters(signal: Signal, endpoint: str | None, given: Mapping[str, str]) -> Sequence[str]:
    """Names of the exporters that are asked for, of those that there are."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    asked = given.get(variable)
    if asked is None:
        addresses = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        return [OTLP] if endpoint is not None or any(name in given for name in addresses) else []
    names = [name.strip().lower() for name in asked.split(",")]
    nothing = {"none", "prometheus"} if signal == "metrics" else {"none"}  # /metrics is there in any case
    for name in names:
        if name not in {OTLP, CONSOLE} | nothing:
            raise ConfigError(f"{variable} is {quoted(name)}; use otlp, console or none")
    return [name for name in names if name not in nothing]


def _url(signal: Signal, endpoint: str | None, given: Mapping[str, str]) -> str:
    _check_protocol(signal, given)
    own, general = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    if endpoint is not None:
        _check_url("--otlp-endpoint", endpoint)
        return _joined(endpoint, signal)
    if own in given:
        _check_url(own, given[own])
        return given[own]
    if general in given:
        _check_url(general, given[general])
    return _joined(given.get(general, DEFAULT_ENDPOINT), signal)


def _joined(base: str, signal: Signal) -> str:
    """The address of a signal below `base`, which may be the address of either signal by mistake."""
    parts = urlsplit(base)
    path = f"{_SIGNAL_PATH.sub('', parts.path).rstrip('/')}/v1/{signal}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _check_url(source: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and _is_host(parts.hostname or "") and parts.port != 0
    except ValueError:  # a port that is none, or half an IPv6 address
        is_whole = False
    if not is_whole or not _URL.fullmatch(url):
        raise ConfigError(f"{source} is {quoted(url)}; give an address with scheme and host, like {DEFAULT_ENDPOINT}")


def _is_host(name: str) -> bool:
    if ":" in name:
        ipaddress.IPv6Address(name)
        return True
    return _HOST.fullmatch(name) is not None


def _check_protocol(signal: Signal, given: Mapping[str, str]) -> None:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if variable in given:
            if given[variable].lower() != PROTOCOL:
                raise ConfigError(
                    f"{variable} is {quoted(given[variable])}, and Limelight speaks {PROTOCOL} alone; set it to that, "
                    "or leave it out, and give the collector's HTTP port, which is mostly 4318"
                )
            return


def _size(variable: str, default: int, given: Mapping[str, str], limit: int = 10**6) -> int:
    text = given.get(variable)
    if text is None:
        return default
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 0 < size <= limit:
        raise ConfigError(f"{variable} is {quoted(text)}; use a whole number from 1 to {limit}")
    return size
