"""HEAD: what GET would answer, without the body."""

from typing import Any

from litestar.enums import HttpMethod, ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send


class HeadRequests:
    """ASGI middleware: the application sees a GET, the client its status and headers.

    What answers without an end is told that its client has left as soon as its headers are out.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        if scope["type"] != ScopeType.HTTP or scope["method"] != HttpMethod.HEAD:
            await self._app(scope, receive, send)
            return
        kept: Any = scope
        has_answered = False

        async def send_head(message: Any) -> None:
            nonlocal has_answered
            if not has_answered and message["type"] == "http.response.start":
                has_answered = True
                kept["method"] = "HEAD"  # the server leaves the body out, and the record says what was asked
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        kept["method"] = "GET"
        await self._app(scope, receive, send_head)
