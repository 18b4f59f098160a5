"""`POST /v1/responses`: from the body to the answer, whole or streamed, and into the store."""

from functools import partial
from typing import Any

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from limelight.errors import InvalidRequest
from limelight.generation import Generation
from limelight.http.exchange import exchange_of
from limelight.http.protocol.responses.items import checked_items
from limelight.http.protocol.responses.objects import ResponseObject
from limelight.http.protocol.responses.request import RESPONSES_DECODER, ResponsesRequest, check_request
from limelight.http.protocol.sampling import check_labels
from limelight.http.request_id import adopt_request_id
from limelight.http.responses.background import start_in_background
from limelight.http.responses.frames import ResponseFrames
from limelight.http.responses.new_response import in_own_terms, new_response
from limelight.http.responses.retrieval import response_events, response_json
from limelight.http.responses.run import whole_response
from limelight.http.responses.store import ResponseStore
from limelight.http.responses.stored import StoredResponse
from limelight.http.serving import Serving
from limelight.http.whole import WholeAnswer


async def create_response(serving: Serving, store: ResponseStore, request: Request[Any, Any, Any]) -> ASGIApp:
    """The answer to a request.

    Raises:
        InvalidRequest: the request cannot be served as it stands; `param` names the field.
        LimelightError: the engine does not take a response in the background.
        ModelNotFound, ResponseNotFound: it names a model or an earlier response that is not here.
        HTTPException: the body is too large (413) or of another media type (415).
    """
    body, headers = await _read(serving, request)
    owner = str(request.scope["user"].name)
    given = await serving.work(request, partial(checked_items, body.input or ()))
    items = store.resolve(owner, given)
    parent = _parent(store, owner, body.previous_response_id)
    keeps = store.enabled and body.store is not False
    new = new_response(serving.engine, body, items, parent, stored=keeps)
    generation = serving.request(
        request,
        new.run.response.id,
        new.prepared.prompt,
        new.prepared.sampling,
        model=body.model,
        priority=body.priority,
        cache_salt=body.cache_salt,
        limits=body,
        reasoning=new.prepared.reasoning,
    )

    def keep(response: ResponseObject) -> None:
        if keeps:
            store.add(owner, response, items, parent)

    def build(generations: list[Generation]) -> ResponseObject:
        response = whole_response(new.run, generations[0], exchange_of(request.scope).timelines)
        keep(response)
        return response

    if body.background:
        if not keeps:
            raise InvalidRequest(
                "background needs store: true, and a server that keeps responses (--max-stored-responses)",
                param="background",
            )
        with in_own_terms(body):
            stored = await start_in_background(serving, store, request.scope, generation, new.run, items, parent)
        return response_events(serving, stored, 0, headers) if body.stream else response_json(stored, headers)
    if body.stream:
        writer = ResponseFrames(new.run, keep)
        return _InOwnTerms(body, serving.streamed(request, [generation], writer, headers))
    return _InOwnTerms(body, WholeAnswer(serving.engine, [generation], build, headers))


async def _read(serving: Serving, request: Request[Any, Any, Any]) -> tuple[ResponsesRequest, dict[str, str]]:
    """The checked body, and the headers that the answer shall carry."""
    body, ignored = await serving.decode(request, RESPONSES_DECODER)
    check_request(body)
    check_labels(body.cache_salt, body.request_id)
    if body.request_id is not None:
        adopt_request_id(request.scope, body.request_id)
    serving.check_model(body.model, request)
    return body, serving.report_ignored(ignored)


def _parent(store: ResponseStore, owner: str, response_id: str | None) -> StoredResponse | None:
    if response_id is None:
        return None
    parent = store.get(owner, response_id, param="previous_response_id")
    if parent.running:
        raise InvalidRequest(
            f"the response {response_id} has not ended yet; wait until it has, then continue it",
            param="previous_response_id",
        )
    return parent


class _InOwnTerms:
    """ASGI response: the same one, but what goes wrong before it has begun is told in the terms of this endpoint."""

    def __init__(self, body: ResponsesRequest, answer: ASGIApp) -> None:
        self._body = body
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with in_own_terms(self._body):
            await self._answer(scope, receive, send)
