"""How the log of a server looks. Only the program configures logging; the library's records bring their fields."""

import asyncio
import json
import logging
from datetime import UTC, datetime

from limelight.telemetry.log_fields import without_message
from limelight.telemetry.request_log import FIELDS

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """A line for people, and the trace behind it where there is one."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        """The line, without a traceback."""
        line = super().formatMessage(record)
        trace_id = getattr(record, "trace_id", None)
        return line if trace_id is None else f"{line} trace_id={trace_id}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339), level, logger, message, the fields of `FIELDS` there are, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        attributes = vars(record)
        line |= {name: attributes[name] for name in FIELDS if attributes.get(name) is not None}
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info is not None:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


def configure_logging(level: str, log_format: str) -> None:
    """Log to standard error, everything alike, uvicorn's lines included."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if log_format == "json":
        logging.captureWarnings(True)
    logging.getLogger("uvicorn.error").addFilter(_without_content)
    logging.getLogger("uvicorn.access").addFilter(_without_query)


def _without_query(record: logging.LogRecord) -> bool:
    """Has uvicorn log a path without its query, where clients put keys and prompts by mistake."""
    if isinstance(record.args, tuple):
        record.args = tuple(arg.partition("?")[0] if isinstance(arg, str) else arg for arg in record.args)
    return True


def _without_content(record: logging.LogRecord) -> bool:
    """Whether to log what uvicorn says of an application's error, and if so, without what that may quote."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, asyncio.CancelledError):
        return False  # a request that we cut off
    if error is not None:
        shown = without_message(error)
        record.exc_info = (type(shown), shown, shown.__traceback__)
    return True
