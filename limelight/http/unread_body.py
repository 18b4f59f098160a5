"""Reading what nobody wants, so that a refusal arrives.

A socket that is closed while the client still sends is reset, and a reset throws away the answer that was on its way.
On a connection that is kept alive uvicorn reads the rest itself; on one that ends with the answer nobody would.
"""

import contextlib
from collections.abc import Mapping

from litestar.types import Receive, Scope

from limelight.errors import RequestTimeout
from limelight.http.uploads import upload_of

MAX_DISCARDED_BYTES = 64 * 1024 * 1024
"""Who sends more than this after all is cut off."""


async def discard_body(scope: Scope, receive: Receive) -> None:
    """Read the rest of the request's body if its connection ends with the answer."""
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    closes = scope["http_version"] == "1.0" or b"close" in headers.get(b"connection", b"").lower()
    if not closes or b"expect" in headers:  # who expects a "100 Continue" sends nothing before it
        return
    if upload := upload_of(scope):
        upload.discard()
    with contextlib.suppress(RequestTimeout):
        await _read_all(receive)


async def _read_all(receive: Receive) -> None:
    num_bytes = 0
    while num_bytes <= MAX_DISCARDED_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return
        num_bytes += len(message["body"])
        if not message["more_body"]:
            return
