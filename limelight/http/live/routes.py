"""`/v1/requests`: who is served now, where the time of one request goes, a feed of both, and an end by hand."""

import re
import time
from itertools import islice
from typing import Any

from litestar import MediaType, Request, Response, delete, get
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.config import MAX_RECENT_REQUESTS
from limelight.engine import Engine
from limelight.errors import InvalidRequest, RequestCancelled, RequestNotFound
from limelight.http.auth import NEEDS_OBSERVE
from limelight.http.exchange import UNTRACED
from limelight.http.keys.principal import ADMIN, Principal
from limelight.http.live.feed import FeedAnswer, LiveFeed, views_of
from limelight.http.live.objects import (
    RequestDetail,
    RequestList,
    SpanEventObject,
    SpanObject,
    engine_numbers,
)
from limelight.http.serving import Serving
from limelight.quoting import quoted
from limelight.telemetry.otlp_json import otlp_json
from limelight.telemetry.span_tree import SpanRecord, spans_of
from limelight.telemetry.timeline import RequestTimeline

LOOKS = NEEDS_OBSERVE | UNTRACED


def live_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """All of them. Whoever may observe sees the numbers of everybody's requests, and ends only its own."""
    engine = serving.engine
    feed = LiveFeed(engine)

    @get("/v1/requests", opt=LOOKS)
    async def list_requests(request: Request[Any, Any, Any]) -> RequestList:
        telemetry = engine.telemetry
        recent = list(islice(reversed(telemetry.recent), _number_of_recent(request)))
        return RequestList(
            now=time.time(),
            engine=engine_numbers(engine),
            data=await views_of(engine, list(telemetry.live.values())),
            recent=await views_of(engine, recent),
        )

    @get("/v1/requests/events", opt=LOOKS)
    async def watch_requests(request: Request[Any, Any, Any]) -> ASGIApp:
        await request.body()  # which means nothing, but may be on its way
        return FeedAnswer(feed)

    @get("/v1/requests/{request_id:str}", opt=LOOKS)
    async def show_request(request: Request[Any, Any, Any]) -> RequestDetail:
        return _detail(engine, _found(engine, request))

    @get("/v1/requests/{request_id:str}/trace", opt=LOOKS)
    async def download_trace(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        timeline = _found(engine, request)
        engine.live_view.of(timeline)  # counts up to now
        name = re.sub(r"[^A-Za-z0-9_-]", "_", timeline.request_id)[:64]
        headers = {"content-disposition": f'attachment; filename="{name}.otlp.json"'}
        return Response(otlp_json(timeline), media_type=MediaType.JSON, headers=headers)

    @delete("/v1/requests/{request_id:str}", status_code=204)
    async def abort_request(request: Request[Any, Any, Any]) -> None:
        timeline = _found(engine, request, of=request.scope["user"])
        engine.abort(timeline.request_id, RequestCancelled("The request was aborted by DELETE"))

    return [list_requests, watch_requests, show_request, download_trace, abort_request]


def _number_of_recent(request: Request[Any, Any, Any]) -> int:
    text = request.query_params.get("recent", "0")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 0 <= number <= MAX_RECENT_REQUESTS:
        raise InvalidRequest(
            f"recent is {quoted(text)}; it must be a number of requests from 0 to {MAX_RECENT_REQUESTS}",
            param="recent",
        )
    return number


def _found(engine: Engine, request: Request[Any, Any, Any], of: Principal | None = None) -> RequestTimeline:
    """The request that the path names by its own id, or by the id of the answer to several prompts: then the first.

    Args:
        of: who must have sent it, unless it is an admin; None: anybody.

    Raises:
        RequestNotFound: there is none.
    """
    request_id: str = request.path_params["request_id"]
    timeline = engine.live_view.find(request_id) or engine.live_view.find(f"{request_id}-0")
    if timeline is None or not (of is None or timeline.owner == of.name or ADMIN in of.scopes):
        raise RequestNotFound(
            f"There is no request {quoted(request_id)} "
            + ("among those that run or ended lately" if of is None else "of this API key's that runs or ended lately")
            + "; GET /v1/requests lists them",
            param="request_id",
        )
    return timeline


def _detail(engine: Engine, timeline: RequestTimeline) -> RequestDetail:
    view = engine.live_view.of(timeline)
    code = view.error_code
    spans = [_span(record, timeline.arrived_at, code) for record in spans_of(timeline)]
    return RequestDetail(spans=spans, **{name: getattr(view, name) for name in view.__struct_fields__})


def _span(record: SpanRecord, zero: float, error_code: str | None) -> SpanObject:
    """`error_code` stands for a message, which could quote the request."""
    return SpanObject(
        key=record.key,
        name=record.name,
        parent=record.parent,
        start=record.start - zero,
        end=record.end - zero,
        attributes=dict(record.attributes),
        events=[
            SpanEventObject(name=event.name, at=event.at - zero, attributes=dict(event.attributes))
            for event in record.events
        ],
        error=None if record.error is None else error_code,
    )
