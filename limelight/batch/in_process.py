"""One HTTP request to an ASGI application in this process: no socket, no server, the same handling."""

from typing import Any

import anyio
import msgspec
from litestar.types import ASGIApp


class Received(msgspec.Struct):
    """A whole response; header names are in lower case."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""


async def post(app: ASGIApp, path: str, body: bytes) -> Received:
    """The answer to a POST of JSON; a cancelled call is, to the application, a cancelled request.

    Args:
        app: the application, the routes of which need no lifespan.
        path: of the route, without a query.
    """
    received = Received()
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if unread:
            return unread.pop()
        return await anyio.sleep_forever()  # the client stays until it has its answer

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            received.status = message["status"]
            received.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.get("headers", ())
            }
        else:
            received.body += message.get("body", b"")

    scope: Any = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    return received
