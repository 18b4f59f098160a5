"""uvicorn's HTTP parser without its weaknesses before strangers: endless request heads, clients that are slow on
purpose, connections without number, disconnects that pipelining hides, and writes that wake each reader anew.

A client that half-closes its connection (`shutdown(SHUT_WR)`) counts as gone: from here it looks the same as one that
has closed it, and whoever has left must not keep a model busy.
"""

import asyncio
import json
from typing import Any, ClassVar, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from limelight.http.gathered_writes import GatheredTransport

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; what arrives with a single read of the socket is let through."""
MAX_PIPELINED = 16
"""Requests that may wait behind a running one on the same connection. More are not read until it has been answered."""
MIN_BODY_BYTES_PER_SECOND = 1024
PROBES = frozenset({b"/livez", b"/readyz", b"/health", b"/ping"})
NUM_RESERVED = 16
"""Connections beyond the limit, for probes alone: a full server is alive."""
RETRY_SECONDS = 1


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What one server lets its clients do.

    Attributes:
        max_connections: open at once. One more takes the place of the one that has been idle for longest; where none
            is idle, it is answered with 503 (unless it is a probe) and closed.
        head_seconds: until the request line and headers are complete, from the connection's or the request's first
            moment; then 408.
        body_seconds: in each such time, a body that is waited for has to bring `MIN_BODY_BYTES_PER_SECOND`; else 408.
    """

    max_connections: int = 4096
    head_seconds: float = 30.0
    body_seconds: float = 30.0


def bounded_protocol(limits: ConnectionLimits) -> type["BoundedHttpToolsProtocol"]:
    """The protocol of one server."""

    class Protocol(BoundedHttpToolsProtocol):
        idle = {}

    Protocol.limits = limits
    return Protocol


class BoundedHttpToolsProtocol(HttpToolsProtocol):
    """Bounds what a connection may do, and tells every request of a connection when it is lost.

    uvicorn itself stops reading while requests wait behind a running one, so that it does not see the client go, and
    then tells the last of them only: the running one would go on for nobody.

    Attributes:
        limits: of the server.
        idle: the server's connections without a request, the one that has been so for longest first.
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    idle: ClassVar[dict["BoundedHttpToolsProtocol", None]] = {}

    _in_head = True
    _num_head_bytes = 0
    _num_body_bytes = 0
    _running: RequestResponseCycle | None = None
    _is_surplus = False
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gather what is written; make room, or refuse."""
        super().connection_made(cast("asyncio.Transport", GatheredTransport(transport, self.loop)))
        surplus = len(self.connections) - self.limits.max_connections
        while surplus > 0 and self.idle:
            oldest = next(iter(self.idle))
            del self.idle[oldest]
            oldest.transport.close()
            surplus -= 1
        if surplus > NUM_RESERVED:
            self._refuse(503, "too many connections; try again later")
            return
        self._is_surplus = surplus > 0
        self.idle[self] = None
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that is still incomplete, and watch over a body."""
        if self.transport.is_closing():
            return
        self.idle.pop(self, None)
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_head()
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"the request line and headers are over {MAX_HEAD_BYTES} bytes")
        elif self._body_timer is None and self.cycle is not None and self.cycle.more_body:
            self._num_body_bytes = 0
            self._body_timer = self.loop.call_later(self.limits.body_seconds, self._look_at_body)

    def on_message_begin(self) -> None:
        """A new head."""
        self._in_head, self._num_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete; what follows is body."""
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self._is_surplus and self.url.partition(b"?")[0] not in PROBES:
            self.app = _too_many_connections
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        elif len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """The next in line becomes the running one."""
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        self._running = following
        if following is not None or self.transport.is_closing():
            return
        if self._in_head:
            self._wait_for_head()  # the next one has begun
        else:
            self.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request, too."""
        self.idle.pop(self, None)
        for timer in (self._head_timer, self._body_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._body_timer = None
        super().connection_lost(exc)
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, msg)

    @property
    def _current(self) -> RequestResponseCycle | None:
        return self._running or self.cycle

    def _wait_for_head(self) -> None:
        seconds = self.limits.head_seconds
        self._head_timer = self.loop.call_later(seconds, self._is_late, f"no complete head came within {seconds:g} s")

    def _look_at_body(self) -> None:
        """Once in `body_seconds`: has enough come? What we do not read ourselves is not held against the client."""
        self._body_timer = None
        cycle, seconds = self.cycle, self.limits.body_seconds
        if not cycle.more_body or self.transport.is_closing():
            return
        if not self.flow.read_paused and self._num_body_bytes < MIN_BODY_BYTES_PER_SECOND * seconds:
            self._is_late(f"{self._num_body_bytes} bytes of the body came within {seconds:g} s; send it faster")
            return
        self._num_body_bytes = 0
        self._body_timer = self.loop.call_later(seconds, self._look_at_body)

    def _is_late(self, message: str) -> None:
        self._head_timer = None
        running = self._current
        if running is None and not self._num_head_bytes:
            self.transport.close()  # it never said a word
        elif running is not None and running.response_started and not running.response_complete:
            self.transport.abort()  # a refusal would stand within another answer
        else:
            self._refuse(408, message)

    def _refuse(self, status: int, message: str) -> None:
        """Answer outside of the application, and close."""
        retry = b"retry-after: %d\r\n" % RETRY_SECONDS if status == 503 else b""
        content = _error(status, message)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n"
        self.transport.write(STATUS_LINE[status] + head % (len(content), retry) + content)
        self.transport.close()


async def _too_many_connections(scope: Any, receive: Any, send: Any) -> None:
    """The application of connections that are one too many."""
    content = _error(503, "too many connections; try again later")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"retry-after", b"%d" % RETRY_SECONDS),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _error(status: int, message: str) -> bytes:
    """OpenAI's error object."""
    kind, code = {
        400: ("invalid_request_error", "invalid_http"),
        408: ("invalid_request_error", "request_timeout"),
        503: ("overloaded_error", "overloaded"),
    }[status]
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
