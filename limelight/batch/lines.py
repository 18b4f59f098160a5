"""One line of a batch: what it asks for, or why it cannot be asked. The form is that of OpenAI's Batch API."""

import hashlib
from typing import Any

import msgspec

from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.quoting import explanation, quoted

URLS = tuple(endpoint.path for endpoint in ENDPOINTS if not endpoint.path.endswith("_lora_adapter"))
"""What a line may call: every endpoint that answers a body, and none that changes what is served."""

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Above the largest body that is served, so that such a body is refused as over HTTP; no more is read into memory."""


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a line was not sent, as the Batch API tells it."""

    code: str
    message: str
    param: str | None
    line: int


class RequestLine(msgspec.Struct, frozen=True):
    """A request.

    Attributes:
        number: of the line, from 1.
        id: tells this line from all others; the same in every run over the same line.
        body: JSON of an object.
    """

    number: int
    id: str
    custom_id: str
    url: str
    body: bytes


class RefusedLine(msgspec.Struct, frozen=True):
    """A line that is no request; `custom_id` if it could be read."""

    number: int
    id: str
    custom_id: str | None
    error: LineError


class _Envelope(msgspec.Struct):
    """What stands around a body. Whatever else stands there is the caller's own."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    """The fields of a body that a batch decides upon; the rest is the endpoint's."""

    stream: Any = None
    background: Any = None


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_BODY = msgspec.json.Decoder(_Body)


def parse_line(number: int, raw: bytes) -> RequestLine | RefusedLine:
    """What stands in line `number`; `raw` is without its line feed and not blank."""
    line_id = _line_id(raw)
    if len(raw) > MAX_LINE_BYTES:
        return _refused(number, raw, None, f"it is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        envelope = _ENVELOPE.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _refused(number, raw, None, f"it is no JSON object: {explanation(error)}")
    custom_id = envelope.custom_id
    if not isinstance(custom_id, str) or not custom_id:
        return _refused(number, raw, None, f"custom_id is {quoted(custom_id)}; give a text", param="custom_id")
    if envelope.method != "POST":
        return _refused(
            number, raw, custom_id, f'method is {quoted(envelope.method)}; the only one is "POST"', param="method"
        )
    if envelope.url not in URLS:
        known = f"use one of {', '.join(URLS)}"
        return _refused(number, raw, custom_id, f"url is {quoted(envelope.url)}; {known}", param="url")
    body = bytes(envelope.body)
    if not body.startswith(b"{"):
        return _refused(number, raw, custom_id, "body must be an object with the request's fields", param="body")
    try:
        fields = _BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _refused(number, raw, custom_id, f"body is no JSON object: {explanation(error)}", param="body")
    for name in ("stream", "background"):
        if getattr(fields, name):
            return _refused(
                number,
                raw,
                custom_id,
                f"body.{name} is {quoted(getattr(fields, name))}, and a batch waits for whole answers; leave it out",
                code="unsupported_parameter",
                param=f"body.{name}",
            )
    return RequestLine(number, line_id, custom_id, envelope.url, body)


def _refused(
    number: int,
    raw: bytes,
    custom_id: str | None,
    reason: str,
    *,
    code: str = "invalid_line",
    param: str | None = None,
) -> RefusedLine:
    error = LineError(code=code, message=f"line {number}: {reason}", param=param, line=number)
    # Without a custom_id the number tells one line from the next, which may be the same.
    line_id = _line_id(raw) if custom_id is not None else _line_id(b"%d:" % number + raw)
    return RefusedLine(number, line_id, custom_id, error)


def _line_id(raw: bytes) -> str:
    return f"batch_req_{hashlib.blake2b(raw, digest_size=16).hexdigest()}"
