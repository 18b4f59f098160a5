"""The id that a client may give its HTTP request, for its own logs. Never a key of ours: two may send the same one."""

import re
import uuid
from typing import Any

REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""What is echoed: printable, no blanks, nothing that could split a header or a log line."""

_KEY = "limelight.request_id"


def request_id(scope: Any) -> str:
    """The id of the HTTP request in `scope`: the `x-request-id` header if it is well-formed, else a new one."""
    known = scope.get(_KEY)
    if known is None:
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        known = scope[_KEY] = given if REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
    return str(known)


def only_request_id(scope: Any) -> dict[str, Any]:
    """What outlives the HTTP request of `scope`: a scope that knows the id and nothing else."""
    return {_KEY: request_id(scope)}


def adopt_request_id(scope: Any, given: str) -> None:
    """Use the `request_id` field of a body instead; it wins over the header."""
    scope[_KEY] = given


async def add_request_id(message: Any, scope: Any) -> None:
    """Litestar `before_send` hook: every response, errors included, names its request, for clients of either API."""
    if message["type"] == "http.response.start":
        name = request_id(scope).encode("latin-1")
        message["headers"] = [*message.get("headers", ()), (b"x-request-id", name), (b"request-id", name)]
