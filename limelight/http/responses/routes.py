"""`/v1/responses`: create, fetch, cancel and delete responses, and list what one was asked."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from limelight.http.exchange import GENERATES, exchange_of
from limelight.http.protocol.responses.objects import DeletedResponse
from limelight.http.responses.background import cancel_response
from limelight.http.responses.creation import create_response
from limelight.http.responses.input_items import input_item_page
from limelight.http.responses.new_response import RESPONSE_PREFIX
from limelight.http.responses.retrieval import response_json, retrieved_events, retrieved_response
from limelight.http.responses.store import ResponseStore
from limelight.http.responses.stored import StoredResponse
from limelight.http.serving import Serving
from limelight.http.stream_options import LAST_EVENT_HEADER, last_event
from limelight.http.stream_routes import resume


def response_routes(serving: Serving, store: ResponseStore) -> list[HTTPRouteHandler]:
    """All routes over the responses in `store`."""

    @post("/v1/responses", status_code=200, opt=GENERATES, before_request=_resume(serving, store))
    async def create(request: Request[Any, Any, Any]) -> ASGIApp:
        return await create_response(serving, store, request)

    @get("/v1/responses/{response_id:str}")
    async def retrieve(request: Request[Any, Any, Any]) -> ASGIApp:
        await request.body()  # which means nothing, but may be on its way
        return retrieved_response(serving, _named(store, request), request)

    @delete("/v1/responses/{response_id:str}", status_code=200)
    async def remove(request: Request[Any, Any, Any]) -> ASGIApp:
        stored = _named(store, request)
        store.delete(stored.owner, stored.id)
        return _json(DeletedResponse(id=stored.id))

    @post("/v1/responses/{response_id:str}/cancel", status_code=200)
    async def cancel(request: Request[Any, Any, Any]) -> ASGIApp:
        stored = _named(store, request)
        await cancel_response(stored)
        return response_json(stored, {})

    @get("/v1/responses/{response_id:str}/input_items")
    async def input_items(request: Request[Any, Any, Any]) -> ASGIApp:
        return _json(input_item_page(_named(store, request).input_items(), request.query_params))

    return [create, retrieve, remove, cancel, input_items]


def _resume(serving: Serving, store: ResponseStore) -> Callable[[Request[Any, Any, Any]], Awaitable[ASGIApp | None]]:
    """Litestar's `before_request` hook: with `Last-Event-ID` a response in the background, or a stream, goes on."""
    resume_stream = resume(serving)

    async def hook(request: Request[Any, Any, Any]) -> ASGIApp | None:
        last = request.headers.get(LAST_EVENT_HEADER, "")
        if not last.startswith(RESPONSE_PREFIX):
            return await resume_stream(request)
        await request.body()  # which means nothing: the request is not run again
        stored = _stored(store, request, last_event(last)[0], param=LAST_EVENT_HEADER)
        return retrieved_events(serving, stored, request)

    return hook


def _named(store: ResponseStore, request: Request[Any, Any, Any]) -> StoredResponse:
    """The response that the path names; raises as `_stored`."""
    return _stored(store, request, str(request.path_params["response_id"]))


def _stored(
    store: ResponseStore, request: Request[Any, Any, Any], response_id: str, param: str | None = None
) -> StoredResponse:
    """A response that `request` is about.

    Raises:
        ResponseNotFound: there is none, or it is somebody else's.
    """
    stored = store.get(str(request.scope["user"].name), response_id, param=param)
    if stored.recording is not None:
        exchange_of(request.scope).link(stored.recording.span_context)
    return stored


def _json(body: msgspec.Struct) -> ASGIApp:
    return ASGIResponse(body=msgspec.json.encode(body))
