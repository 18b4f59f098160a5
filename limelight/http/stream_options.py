"""What a client may ask of a stream by headers, on every endpoint that streams; without them nothing changes."""

from collections.abc import Mapping

import msgspec

from limelight.errors import InvalidRequest
from limelight.http.prompt_progress import PROGRESS_SECONDS
from limelight.http.settings import HttpSettings
from limelight.quoting import quoted

RESUMABLE_HEADER = "x-limelight-resumable"
GRACE_HEADER = "x-limelight-grace"
PROGRESS_HEADER = "x-limelight-progress"
STREAM_HEADER = "x-limelight-stream"
"""Of a response: the id of its stream."""
LAST_EVENT_HEADER = "last-event-id"

DEFAULT_GRACE_SECONDS = 30.0


class StreamOptions(msgspec.Struct, frozen=True):
    """What is asked of one stream.

    Attributes:
        grace_seconds: how long it goes on without a reader; None: it is not resumable.
        progress_seconds: how often comments before the first token say how far it is; None: never.
    """

    grace_seconds: float | None = None
    progress_seconds: float | None = None


def stream_options(headers: Mapping[str, str], settings: HttpSettings) -> StreamOptions:
    """What `headers` ask for.

    Raises:
        InvalidRequest: a value is none of those that the header takes; `param` names it.
    """
    resumable = _switch(headers, RESUMABLE_HEADER)
    if GRACE_HEADER in headers and not resumable:
        raise InvalidRequest(f"{GRACE_HEADER} needs {RESUMABLE_HEADER}: 1 beside it", param=GRACE_HEADER)
    return StreamOptions(
        grace_seconds=_grace(headers, settings.max_grace_seconds) if resumable else None,
        progress_seconds=PROGRESS_SECONDS if _switch(headers, PROGRESS_HEADER) else None,
    )


def last_event(text: str) -> tuple[str, int]:
    """Stream id and frame number of an id that a frame carried.

    Raises:
        InvalidRequest: it is no such id.
    """
    stream_id, _, number = text.rpartition(":")
    return stream_id, frame_number(number, LAST_EVENT_HEADER)


def frame_number(text: str, param: str) -> int:
    """The number of a frame.

    Raises:
        InvalidRequest: it is none; the message names `param`.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidRequest(f"{param} ends with {quoted(text)}; it must be a frame's number", param=param)
    return int(text)


def _switch(headers: Mapping[str, str], name: str) -> bool:
    value = headers.get(name, "0").strip().lower()
    if value not in ("1", "true", "0", "false"):
        raise InvalidRequest(f"{name} is {quoted(value)}; use 1 or 0", param=name)
    return value in ("1", "true")


def _grace(headers: Mapping[str, str], most: float) -> float:
    if GRACE_HEADER not in headers:
        return min(DEFAULT_GRACE_SECONDS, most)
    text = headers[GRACE_HEADER]
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= most:
        raise InvalidRequest(
            f"{GRACE_HEADER} is {quoted(text)}; it must be a number of seconds from 0 to {most:g} (the server's "
            "option --max-grace)",
            param=GRACE_HEADER,
        )
    return seconds
