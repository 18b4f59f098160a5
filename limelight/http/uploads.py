"""Request bodies on their way in: how slow they may be, and how much memory they take together."""

import math
from collections.abc import Callable
from typing import Any

import anyio
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from limelight.errors import Overloaded, RequestTimeout
from limelight.http.settings import HttpSettings

SMALL_BODY_BYTES = 64 * 1024
"""What a body takes beyond counts; so small ones are taken although large ones have used the memory up."""

_KEY = "limelight.upload"


class BoundedUploads:
    """ASGI middleware: the bodies of all requests within the bounds of the settings."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self._settings = settings
        self._num_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application.

        Raises:
            RequestTimeout: inside, where the body is read, and so is the next.
            Overloaded: all bodies together are too large.
        """
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        upload = Upload(receive, self._settings, self._take)
        kept: Any = scope
        kept[_KEY] = upload
        try:
            await self._app(scope, upload.receive, send)
        finally:
            del kept[_KEY]
            self._num_bytes -= upload.num_taken

    def _take(self, num_bytes: int) -> None:
        if self._num_bytes + num_bytes > self._settings.body_memory_bytes:
            raise Overloaded(
                f"The bodies of the requests in hand have {self._num_bytes} bytes, and at most "
                f"{self._settings.body_memory_bytes} are kept; try again later"
            )
        self._num_bytes += num_bytes


class Upload:
    """The body of one request.

    Attributes:
        num_taken: bytes of it that count.
    """

    __slots__ = ("_deadline", "_is_complete", "_is_kept", "_num_bytes", "_receive", "_settings", "_take", "num_taken")

    def __init__(self, receive: Receive, settings: HttpSettings, take: Callable[[int], None]) -> None:
        self._receive = receive
        self._settings = settings
        self._take = take
        self._deadline: float | None = None
        self._num_bytes = 0
        self._is_complete = False
        self._is_kept = True
        self.num_taken = 0

    def discard(self) -> None:
        """What comes from now on is kept by nobody."""
        self._is_kept = False

    async def receive(self) -> Any:
        """The next message from the client.

        Raises:
            RequestTimeout: the body arrives too slowly.
            Overloaded: with it all bodies together are too large.
        """
        if self._is_complete:
            return await self._receive()
        if self._deadline is None:
            self._deadline = anyio.current_time() + self._settings.body_timeout_seconds
        message: Any = None
        with anyio.CancelScope(deadline=self._deadline):
            message = await self._receive()
        if message is None:
            raise RequestTimeout(
                f"{self._num_bytes} bytes of the request body have arrived, too slowly: within "
                f"{self._settings.body_timeout_seconds:g} s, and {self._settings.min_body_bytes_per_second} bytes a "
                "second beyond that"
            )
        if message["type"] == "http.request":
            self._received(len(message.get("body", b"")))
        self._is_complete = not message.get("more_body", False)
        return message

    def _received(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._deadline = (self._deadline or math.inf) + num_bytes / self._settings.min_body_bytes_per_second
        more = max(0, self._num_bytes - SMALL_BODY_BYTES) - self.num_taken
        if more and self._is_kept:
            self._take(more)
            self.num_taken += more


def upload_of(scope: Any) -> Upload | None:
    """The body of the request in `scope`; None outside of the application."""
    upload: Upload | None = scope.get(_KEY)
    return upload
