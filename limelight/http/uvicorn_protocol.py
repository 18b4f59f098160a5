"""uvicorn's faster HTTP parser without three weaknesses: endless request heads, disconnects that pipelining hides, and
writes that wake each reader anew.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from limelight.http.gathered_writes import GatheredTransport

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; what arrives with a single read of the socket is let through."""
MAX_PIPELINED = 16
"""Requests that may wait behind a running one on the same connection. More are not read until it has been answered."""


class BoundedHttpToolsProtocol(HttpToolsProtocol):
    """Answers an overlong head with 400, and tells every request of a connection when it is lost.

    uvicorn itself stops reading while requests wait behind a running one, so that it does not see the client go, and
    then tells the last of them only: the running one would go on for nobody.
    """

    _in_head = True
    _num_head_bytes = 0
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gather what is written."""
        super().connection_made(cast("asyncio.Transport", GatheredTransport(transport, self.loop)))

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that is still incomplete."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self._in_head:
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request line and headers are over {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """A new head."""
        self._in_head, self._num_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete; what follows is body."""
        self._in_head = False
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        elif len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The next in line becomes the running one."""
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        self._running = following

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request, too."""
        super().connection_lost(exc)
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
