"""A stored response once more: whole, or as the events that led to it."""

from collections.abc import Mapping
from typing import Any

from litestar import Request
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from limelight.errors import InvalidRequest
from limelight.http.responses.frames import replayed_frames
from limelight.http.responses.stored import StoredResponse
from limelight.http.resumable import RecordedAnswer
from limelight.http.serving import Serving
from limelight.http.sse import STREAM_HEADERS
from limelight.http.stream_options import LAST_EVENT_HEADER, frame_number, last_event
from limelight.quoting import quoted

STARTING_AFTER = "starting_after"
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def retrieved_response(serving: Serving, stored: StoredResponse, request: Request[Any, Any, Any]) -> ASGIApp:
    """The response, or with `stream=true` its events.

    Raises:
        InvalidRequest, StreamGone: as `retrieved_events`; or `stream` is no truth value.
    """
    if _truth(request.query_params.get("stream"), "stream"):
        return retrieved_events(serving, stored, request)
    return response_json(stored, {})


def retrieved_events(serving: Serving, stored: StoredResponse, request: Request[Any, Any, Any]) -> ASGIApp:
    """The events of the response: from the first on, or after the one that the request names.

    Raises:
        InvalidRequest: it names none, or the events were never numbered for a client.
        StreamGone: the events that are asked for were dropped.
    """
    first = _first_event(stored, request)
    if stored.recording is not None:
        stored.recording.log.check(first)
        return response_events(serving, stored, first, {})
    if first:
        raise InvalidRequest(
            f"{STARTING_AFTER} needs a response that was created with background: true; the events of this one were "
            "not kept, leave it out to get them anew",
            param=STARTING_AFTER,
        )
    return _Replay(stored)


def response_json(stored: StoredResponse, headers: Mapping[str, str]) -> ASGIApp:
    """The response as it is now."""
    return ASGIResponse(body=stored.json(), headers=dict(headers))


def response_events(serving: Serving, stored: StoredResponse, first: int, headers: Mapping[str, str]) -> ASGIApp:
    """The events of a response in the background from number `first` on, as they come."""
    assert stored.recording is not None, "it was started in the background"
    return RecordedAnswer(stored.id, stored.recording, first, serving.settings, headers, None)


class _Replay:
    """ASGI response: the events of a response that has ended, all at once."""

    def __init__(self, stored: StoredResponse) -> None:
        self._stored = stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
        body = b"".join(replayed_frames(self._stored.response()))
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _first_event(stored: StoredResponse, request: Request[Any, Any, Any]) -> int:
    """Number of the first event that is asked for. The header wins: a reader that connects again sends it by itself."""
    last = request.headers.get(LAST_EVENT_HEADER)
    if last:
        named, number = last_event(last)
        if named != stored.id:
            raise InvalidRequest(
                f"{LAST_EVENT_HEADER} is {quoted(last)}, which is no event of this response", param=LAST_EVENT_HEADER
            )
        return number + 1
    after = request.query_params.get(STARTING_AFTER)
    return 0 if after is None else frame_number(after, STARTING_AFTER) + 1


def _truth(text: str | None, param: str) -> bool:
    if text is None:
        return False
    value = _TRUTH.get(text.lower())
    if value is None:
        raise InvalidRequest(f"{param} is {quoted(text)}, must be true or false", param=param)
    return value
