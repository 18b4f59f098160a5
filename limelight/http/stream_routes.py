"""Recorded streams again: at the endpoint where they began, and by their ids under `/v1/streams`."""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Request, delete, get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from limelight.errors import InvalidRequest
from limelight.http.exchange import exchange_of
from limelight.http.recording import Recording
from limelight.http.resumable import RecordedAnswer
from limelight.http.serving import Serving
from limelight.http.stream_options import LAST_EVENT_HEADER, STREAM_HEADER, frame_number, last_event, stream_options
from limelight.quoting import quoted


def resume(serving: Serving) -> Callable[[Request[Any, Any, Any]], Awaitable[ASGIApp | None]]:
    """Litestar's `before_request` hook of an endpoint that streams: with `Last-Event-ID` a stream of it goes on.

    A function, because Litestar copies the objects of bound methods.
    """

    async def hook(request: Request[Any, Any, Any]) -> ASGIApp | None:
        last = request.headers.get(LAST_EVENT_HEADER)
        if not last:
            return None
        await request.body()  # which means nothing: the request is not run again
        stream_id, number = last_event(last)
        return _recorded(serving, request, stream_id, number + 1)

    return hook


def stream_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """`GET` and `DELETE /v1/streams/{id}`."""

    @get("/v1/streams/{stream_id:str}")
    async def read_stream(request: Request[Any, Any, Any]) -> ASGIApp:
        await request.body()  # which means nothing, but may be on its way
        stream_id = request.path_params["stream_id"]
        return _recorded(serving, request, stream_id, _first_frame(request, stream_id))

    @delete("/v1/streams/{stream_id:str}", status_code=204)
    async def delete_stream(request: Request[Any, Any, Any]) -> None:
        stream_id = request.path_params["stream_id"]
        _found(serving, request, stream_id)
        serving.recordings.delete(request.scope["user"].name, stream_id)

    return [read_stream, delete_stream]


def _recorded(serving: Serving, request: Request[Any, Any, Any], stream_id: str, number: int) -> ASGIApp:
    """The frames of a stream from `number` on; after its last one 204, which tells a reader not to come again.

    Raises:
        InvalidRequest: the stream has not come that far.
        StreamNotFound, StreamGone: there is no such stream for this client, or not any more.
    """
    recording = _found(serving, request, stream_id)
    log = recording.log
    log.check(number)
    if number > log.end:
        raise InvalidRequest(
            f"frame {number - 1} of the stream is not there yet, it has {log.end}; give the number of the last one "
            "that arrived",
            param=LAST_EVENT_HEADER,
        )
    if log.closed and number == log.end:
        return ASGIResponse(status_code=204)
    options = stream_options(request.headers, serving.settings)
    headers = {STREAM_HEADER: stream_id}
    return RecordedAnswer(stream_id, recording, number, serving.settings, headers, options.progress_seconds)


def _found(serving: Serving, request: Request[Any, Any, Any], stream_id: str) -> Recording:
    """The recording that `request` is about.

    Raises:
        StreamNotFound, StreamGone: there is no such stream for this client, or not any more.
    """
    recording = serving.recordings.find(request.scope["user"].name, stream_id)
    exchange_of(request.scope).link(recording.span_context)
    return recording


def _first_frame(request: Request[Any, Any, Any], stream_id: str) -> int:
    """Number of the frame to begin with. The header wins: an `EventSource` sends it to the URL it began with.

    Raises:
        InvalidRequest: header or query are no id and no number, or the header is of another stream.
    """
    last = request.headers.get(LAST_EVENT_HEADER)
    if last:
        named, number = last_event(last)
        if named != stream_id:
            raise InvalidRequest(
                f"{LAST_EVENT_HEADER} is {quoted(last)}, which is no frame of this stream", param=LAST_EVENT_HEADER
            )
        return number + 1
    after = request.query_params.get("after")
    return 0 if after is None else frame_number(after, "after") + 1
