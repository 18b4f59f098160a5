"""Errors of connections that have no request the application could be asked about: complete responses, as bytes."""

import uuid
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from litestar.types import Receive, Scope, Send

from limelight.errors import LimelightError, Overloaded
from limelight.http.errors import error_body
from limelight.http.request_id import request_id

RETRY_SECONDS = 1


def refusal(status: int, code: str, message: str) -> bytes:
    """A whole response, after which the connection is closed."""
    name = f"req_{uuid.uuid4().hex}"
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code, "request_id": name}
    body = msgspec.json.encode({"error": error})
    return _head(status, len(body), name) + body


def no_room(max_connections: int) -> bytes:
    """What a connection beyond the limit is told, before it has said anything."""
    name = f"req_{uuid.uuid4().hex}"
    body = msgspec.json.encode(error_body(_full(max_connections), {"limelight.request_id": name, "headers": []}))
    return _head(503, len(body), name, (f"retry-after: {RETRY_SECONDS}",)) + body


class NoRoom:
    """An ASGI application that tells its client the same, in answer to a request."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer."""
        body = msgspec.json.encode(error_body(_full(self._max_connections), scope))
        name = request_id(scope).encode()
        headers: list[Any] = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"retry-after", b"%d" % RETRY_SECONDS),
            (b"x-request-id", name),
            (b"request-id", name),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _full(max_connections: int) -> LimelightError:
    return Overloaded(
        f"All {max_connections} connections that this server takes are in use; try again later, or have it take more "
        "with --max-connections",
        retry_after_seconds=RETRY_SECONDS,
    )


def _head(status: int, num_bytes: int, name: str, more: tuple[str, ...] = ()) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {num_bytes}",
        f"x-request-id: {name}",
        f"request-id: {name}",
        *more,
        "connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


class Refused(Exception):
    """What the parser found, and is not taken; raised through it."""


def without_upgrade(connection: bytes) -> bytes:
    """A `Connection` header without the wish for another protocol."""
    return b", ".join(token for token in connection.split(b",") if token.strip().lower() != b"upgrade")


def complaint_about(data: bytes, error: httptools.HttpParserError) -> tuple[int, str]:
    """Status and message for what the parser found in `data`."""
    if isinstance(error.__context__, Refused):
        return 400, str(error.__context__)
    if data.startswith(b"PRI * HTTP/2"):
        return 400, "This port speaks HTTP/1.1, not HTTP/2 with prior knowledge"
    if data.startswith(b"\x16\x03"):
        return 400, "This port speaks HTTP without TLS; use http://, or start the server with --ssl-certfile"
    return 400, "This is no valid HTTP/1.1 request"
