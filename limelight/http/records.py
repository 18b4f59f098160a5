"""Replay bundles over HTTP: `x-record: 1` asks for one, `GET /v1/records/{id}` fetches it. Both for admins only.

A bundle holds the prompt and the answer.
"""

from typing import Any

from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from limelight.engine import Engine
from limelight.errors import Forbidden, InvalidRequest, RecordNotFound
from limelight.http.auth import NEEDS_ADMIN
from limelight.http.keys.principal import ADMIN, Principal
from limelight.quoting import quoted

HEADER = "x-record"
ANSWER_HEADER = "x-limelight-record"
"""Names the bundles of a request, one for each of its prompts, in order."""
YES, NO = ("1", "true"), ("0", "false", "")
_KEY = "limelight.record_ids"


def record_id(request: Request[Any, Any, Any], answer_id: str) -> str | None:
    """The name of the bundle that `request` asks for, after that of its answer; None: it asks for none.

    Raises:
        InvalidRequest: the header has an impossible value.
        Forbidden: who asks has not the scope.
    """
    given = request.headers.get(HEADER, "").strip().lower()
    if given in NO:
        return None
    if given not in YES:
        raise InvalidRequest(f"{HEADER} is {quoted(given)}; it must be 1 to record the request, or 0", param=HEADER)
    principal: Principal = request.scope["user"]
    if ADMIN not in principal.scopes:
        raise Forbidden(
            f"{HEADER} needs an admin key: a recorded request's prompt and answer are kept in a file; leave it out, "
            "or send 'Authorization: Bearer KEY' with such a key of this server's (--admin-key, --key-file)",
            param=HEADER,
        )
    name = f"rec-{answer_id}"
    scope: Any = request.scope
    scope.setdefault(_KEY, []).append(name)
    return name


async def add_record_ids(message: Any, scope: Any) -> None:
    """Litestar `before_send` hook: an answer that is recorded names its bundles."""
    names = scope.get(_KEY)
    if names and message["type"] == "http.response.start" and message["status"] < 400:
        message["headers"] = [*message.get("headers", ()), (ANSWER_HEADER.encode(), ", ".join(names).encode())]


def record_routes(engine: Engine) -> list[HTTPRouteHandler]:
    """The route."""

    @get("/v1/records/{record_id:str}", opt=NEEDS_ADMIN)
    async def show_record(request: Request[Any, Any, Any]) -> Response[bytes]:
        name: str = request.path_params["record_id"]
        content = await engine.read_record(name)
        if content is None:
            raise RecordNotFound(
                f"There is no replay bundle {quoted(name)}: it is written when its request has ended, and the oldest "
                "ones are removed",
                param="record_id",
            )
        headers = {"content-disposition": f'attachment; filename="{name}.replay.json"', "cache-control": "no-store"}
        return Response(content, media_type=MediaType.JSON, headers=headers)

    return [show_record]
