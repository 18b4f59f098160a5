"""`GET /openapi.json` (also where Litestar's users look for it, `/schema/openapi.json`) and `GET /docs`."""

from functools import cache
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from limelight.http.auth import PUBLIC
from limelight.http.exchange import UNTRACED
from limelight.http.openapi.document import openapi_document
from limelight.http.openapi.page import documentation_page
from limelight.http.page import PAGE_HEADERS


def documentation_routes() -> list[HTTPRouteHandler]:
    """All of them, public: they say what is in this package, and nothing of the model."""

    @get(["/openapi.json", "/schema/openapi.json"], opt=PUBLIC | UNTRACED)
    async def document() -> Response[Any]:
        return Response(_document(), media_type="application/json")

    @get("/docs", opt=PUBLIC | UNTRACED)
    async def page() -> Response[Any]:
        return Response(_page(), media_type="text/html", headers=PAGE_HEADERS)

    return [document, page]


@cache
def _document() -> bytes:
    return msgspec.json.encode(openapi_document())


@cache
def _page() -> bytes:
    return documentation_page().encode()
