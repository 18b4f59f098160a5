"""`/v1/responses`: create, fetch and delete responses, and list what one was asked."""

from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from limelight.http.protocol.responses.objects import DeletedResponse
from limelight.http.responses.creation import create_response
from limelight.http.responses.input_items import input_item_page
from limelight.http.responses.retrieval import retrieve_response
from limelight.http.responses.store import ResponseStore
from limelight.http.serving import Serving
from limelight.http.stream_routes import resume


def response_routes(serving: Serving, store: ResponseStore) -> list[HTTPRouteHandler]:
    """All routes over the responses in `store`."""

    @post("/v1/responses", status_code=200, before_request=resume(serving))
    async def create(request: Request[Any, Any, Any]) -> ASGIApp:
        return await create_response(serving, store, request)

    @get("/v1/responses/{response_id:str}")
    async def retrieve(request: Request[Any, Any, Any]) -> ASGIApp:
        return retrieve_response(serving, store.get(_owner(request), _id(request)), request.query_params)

    @delete("/v1/responses/{response_id:str}", status_code=200)
    async def remove(request: Request[Any, Any, Any]) -> ASGIApp:
        return _json(DeletedResponse(id=store.delete(_owner(request), _id(request)).id))

    @get("/v1/responses/{response_id:str}/input_items")
    async def input_items(request: Request[Any, Any, Any]) -> ASGIApp:
        items = store.get(_owner(request), _id(request)).input_items()
        return _json(input_item_page(items, request.query_params))

    return [create, retrieve, remove, input_items]


def _owner(request: Request[Any, Any, Any]) -> str:
    return str(request.scope["user"].name)


def _id(request: Request[Any, Any, Any]) -> str:
    return str(request.path_params["response_id"])


def _json(body: msgspec.Struct) -> ASGIApp:
    return ASGIResponse(body=msgspec.json.encode(body))
