"""A stored response once more: whole, or as the events that led to it."""

from collections.abc import Mapping

from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from limelight.errors import InvalidRequest
from limelight.http.responses.frames import replayed_frames
from limelight.http.responses.stored import StoredResponse
from limelight.http.serving import Serving
from limelight.http.sse import STREAM_HEADERS
from limelight.quoting import quoted

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def retrieve_response(serving: Serving, stored: StoredResponse, query: Mapping[str, str]) -> ASGIApp:
    """The response, or with `stream=true` its events after number `starting_after`.

    Raises:
        InvalidRequest: a parameter is no truth value or no number, or the events were not numbered for the client.
    """
    if not _truth(query.get("stream"), "stream"):
        return ASGIResponse(body=stored.json())
    if query.get("starting_after") is not None:
        raise InvalidRequest(
            "starting_after needs a response that was created with background: true; the events of this one were not "
            "kept, leave it out to get them anew",
            param="starting_after",
        )
    return _Replay(stored)


class _Replay:
    """ASGI response: the events of a response that has ended, all at once."""

    def __init__(self, stored: StoredResponse) -> None:
        self._stored = stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
        body = b"".join(replayed_frames(self._stored.response()))
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _truth(text: str | None, param: str) -> bool:
    if text is None:
        return False
    value = _TRUTH.get(text.lower())
    if value is None:
        raise InvalidRequest(f"{param} is {quoted(text)}, must be true or false", param=param)
    return value
