"""One line in the log for each request that has ended: numbers and names, never content or keys.

The logger is `limelight.requests`, the level INFO. Its fields are attributes of the record, too.
"""

import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from limelight.quoting import shorten
from limelight.telemetry.log_fields import ID_FIELDS, of_http_request, of_timeline
from limelight.telemetry.timeline import RequestTimeline
from limelight.telemetry.timings import timings

logger = logging.getLogger("limelight.requests")

REQUEST_FIELDS = (
    "operation",
    "model",
    "ending",
    "code",
    "owner",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "queue_seconds",
    "ttft_seconds",
    "total_seconds",
)
"""Of a request of the engine. `code`: that of its error. What it never reached is missing."""
EXCHANGE_FIELDS = ("method", "route", "status", "code", "owner", "total_seconds")
"""Of an HTTP request that asked nothing of the engine."""
FIELDS = tuple(dict.fromkeys((*ID_FIELDS, *REQUEST_FIELDS, *EXCHANGE_FIELDS)))
"""All attributes that records of Limelight's may have."""


def log_request(timeline: RequestTimeline) -> None:
    """Write the line of a request that has ended, or was refused."""
    if not logger.isEnabledFor(logging.INFO):
        return
    durations = timings(timeline)
    fields = {
        "operation": timeline.operation,
        "model": timeline.model,
        "ending": None if timeline.ending is None else str(timeline.ending),
        "code": None if timeline.error is None else timeline.error.code,
        "owner": timeline.owner,
        "prompt_tokens": timeline.prompt_tokens,
        "cached_tokens": timeline.cached_tokens,
        "output_tokens": timeline.output_tokens,
        "queue_seconds": durations.queue,
        "ttft_seconds": durations.time_to_first_token,
        "total_seconds": durations.total,
    }
    _write(logging.INFO, f"request {_word(timeline.request_id)}", fields, of_timeline(timeline))


def log_exchange(
    *,
    http_request_id: str,
    method: str,
    route: str | None,
    status: int,
    seconds: float,
    code: str | None = None,
    owner: str | None = None,
    span: Any = None,
) -> None:
    """Write the line of an HTTP request that never reached the engine.

    Refused ones are written at INFO, like requests of the engine. Others (probes, lists, pages) at DEBUG.

    Args:
        route: the path's template (`/v1/streams/{stream_id}`), never the path, which clients choose; None: no route.
        code: that of its error.
        owner: name of the principal, if it is known.
        span: its OpenTelemetry span.
    """
    level = logging.INFO if status >= 400 else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    fields = {
        "method": method,
        "route": route,
        "status": status,
        "code": code,
        "owner": owner,
        "total_seconds": seconds,
    }
    _write(level, f"HTTP request {_word(http_request_id)}", fields, of_http_request(http_request_id, span))


def _write(level: int, subject: str, fields: Mapping[str, str | float | None], ids: Mapping[str, str]) -> None:
    known = {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}
    known = {name: value for name, value in known.items() if value is not None}
    words = " ".join(f"{name}={_word(str(value))}" for name, value in known.items())
    with contextlib.suppress(Exception):  # of a host's filter, which must not cost the request
        logger.log(level, "%s: %s", subject, words, extra={**ids, **known})


def _word(text: str) -> str:
    """`text` as one word of a line, quoted if it has blanks, quotation marks or anything that does not print."""
    text = shorten(text, 128)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
