"""uvicorn's faster HTTP parser without its weaknesses against slow, broken and hostile clients."""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from limelight.http.connections import PROBE_RESERVE, PROBE_SECONDS, ConnectionLimits, ConnectionTable
from limelight.http.gathered_writes import GatheredTransport
from limelight.http.half_closed import HalfClosedWatch
from limelight.http.refusals import NoRoom, Refused, complaint_about, no_room, refusal, without_upgrade

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; what arrives with a single read of the socket is let through."""
MAX_HEADERS = 256
MAX_PIPELINED = 16
"""Requests that may wait behind a running one on the same connection. More are not read until it has been answered."""
NUM_FREE_CHUNKS = 1024
"""Chunks of a body that may have any size; the event loop is called for each."""
MIN_CHUNK_BYTES = 64
"""Of the others, on average."""
REFUSED_SECONDS = 1.0
"""How long a refused client may go on sending: a socket closed meanwhile would be reset, and the refusal lost."""
PROBE_PATHS = (b"/livez", b"/readyz", b"/health", b"/ping")


class BoundedHttpToolsProtocol(HttpToolsProtocol):
    """Bounds what a connection may cost, answers what it cannot read in JSON, and lets half-closed clients read.

    uvicorn itself has no bound for the time of a head, none for connections that never send or never read, and none for
    the head's length; it closes where a client has shut its sending half, answers broken requests in the middle of the
    answer before them, loses bodies behind `Upgrade`, takes trailers for headers, and tells only the last request of
    a connection that it is lost.

    Args:
        config, server_state, app_state: as uvicorn gives them.
        table: the connections of this server; by default each has a table of its own, so that none makes way.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        table: ConnectionTable | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._table = table or ConnectionTable(ConnectionLimits())
        self._in_head = True
        self._num_head_bytes = 0
        self._num_complete = 0
        self._num_chunks = 0
        self._num_body_bytes = 0
        self._ignores_upgrade = False
        self._only_probes = False
        self._complaint: bytes | None = None
        self._refused = False
        self._running: RequestResponseCycle | None = None
        self._half_closed: HalfClosedWatch | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gather what is written; find a place."""
        limits = self._table.limits
        gathered = GatheredTransport(transport, self.loop, limits.send_seconds)
        super().connection_made(cast("asyncio.Transport", gathered))
        num_too_many = self._table.opened(self)
        self._only_probes = num_too_many > 0
        if num_too_many > PROBE_RESERVE:
            self._refuse(no_room(limits.max_connections))
        else:
            self._expect_head(PROBE_SECONDS if self._only_probes else limits.head_seconds)

    def make_way(self) -> None:
        """Close: another connection needs the place."""
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more; whether it still reads, a watch finds out. Over TLS it counts as gone."""
        if self._half_closed is not None:
            return True
        is_incomplete = self._running is self.cycle and self.cycle is not None and self.cycle.more_body
        if self._refused or self._running is None or is_incomplete or self.scheme == "https":
            self.transport.close()  # here, since the event loop would drop what is gathered
            return self.scheme != "https"
        transport = cast("GatheredTransport", self.transport)
        self._half_closed = HalfClosedWatch(transport, self.loop, self._may_write_interim_response)
        return True

    def _may_write_interim_response(self) -> bool:
        running = self._running
        return running is not None and not running.response_started and running.scope["http_version"] == "1.1"

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request, too."""
        self._table.lost(self)
        self._stop_timers()
        super().connection_lost(exc)
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def shutdown(self) -> None:
        """As uvicorn, but wait for no client that was refused."""
        if self._refused:
            self.transport.abort()
        else:
            super().shutdown()

    def _stop_timers(self) -> None:
        self._heads_are_complete()
        self._writes_go_on()
        if self._half_closed is not None:
            self._half_closed.cancel()

    # ---- reading

    def data_received(self, data: bytes) -> None:
        """Parse, within bounds."""
        if self.transport.is_closing() or self._refused or self._complaint is not None:
            return
        self._unset_keepalive_if_required()
        if self._head_timer is None and self._running is None:
            self._expect_head(self._table.limits.head_seconds)
        num_complete = self._num_complete
        try:
            rest = data
            while rest:
                rest = self._feed(rest)
        except httptools.HttpParserError as error:
            self._broken(*complaint_about(data, error))
            return
        if self._in_head:
            self._num_head_bytes += len(data) if num_complete == self._num_complete else 1
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._broken(400, f"The request line and headers are over {MAX_HEAD_BYTES} bytes")

    def _feed(self, data: bytes) -> bytes:
        """Parse `data`; returns what is to be parsed after it."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._ignores_upgrade:
                raise httptools.HttpParserError from upgrade
            self._ignores_upgrade = False
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
            return self._head_without_upgrade() + data[upgrade.args[0] :]
        return b""

    def _head_without_upgrade(self) -> bytes:
        """The head of the request again.

        Who asks for another protocol may be answered in HTTP/1.1, but the parser takes what follows for the other one.
        """
        first = f"{self.scope['method']} ".encode() + self.url + f" HTTP/{self.scope['http_version']}".encode()
        kept = [(name, without_upgrade(value) if name == b"connection" else value) for name, value in self.headers]
        lines = [first, *(name + b": " + value for name, value in kept if name != b"upgrade")]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """A new head."""
        self._in_head, self._num_head_bytes, self._num_chunks, self._num_body_bytes = True, 0, 0, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, and no trailer: what a proxy has checked are the headers."""
        if not self._in_head:
            return
        if len(self.headers) >= MAX_HEADERS:
            raise Refused(f"The request has more than {MAX_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete; what follows is body."""
        self._in_head = False
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._ignores_upgrade = True
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise Refused("The request has more than one Host header")
        if self._only_probes and not self.url.partition(b"?")[0].endswith(PROBE_PATHS):
            self.app = cast("Any", NoRoom(self._table.limits.max_connections))
        self._heads_are_complete()
        self._table.works(self)
        super().on_headers_complete()
        if self._only_probes:
            self.cycle.keep_alive = False
        if not self.pipeline:
            self._running = self.cycle
        elif len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._num_chunks += 1
        self._num_body_bytes += len(body)
        if self._num_chunks > NUM_FREE_CHUNKS and self._num_body_bytes < MIN_CHUNK_BYTES * self._num_chunks:
            raise Refused(f"The body comes in chunks of less than {MIN_CHUNK_BYTES} bytes; send larger ones")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._ignores_upgrade:
            self._num_complete += 1
            super().on_message_complete()

    # ---- answering

    def on_response_complete(self) -> None:
        """The next in line becomes the running one."""
        self._running = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._running is not None:
            return
        if self._complaint is not None:
            self._refuse(self._complaint)
        elif self._half_closed is not None:
            self.transport.close()
        else:
            self._table.waits(self)
            if self._in_head:
                self._expect_head(self._table.limits.head_seconds)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        super().pause_writing()
        self._look_again_after(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writes_go_on()
        super().resume_writing()

    def _look_again_after(self, num_waiting: int) -> None:
        self._send_timer = self.loop.call_later(self._table.limits.send_seconds, self._check_reader, num_waiting)

    def _check_reader(self, num_waiting: int) -> None:
        still_waiting = self.transport.get_write_buffer_size()
        if still_waiting < num_waiting:
            self._look_again_after(still_waiting)
        else:
            self.transport.abort()

    def _writes_go_on(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    # ---- refusing

    def _expect_head(self, seconds: float) -> None:
        self._head_timer = self.loop.call_later(seconds, self._head_is_late, seconds)

    def _heads_are_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self, seconds: float) -> None:
        if self._num_head_bytes and self._in_head:
            self._broken(408, f"The request line and headers were not complete after {seconds:g} s")
        else:
            self.transport.close()

    def _broken(self, status: int, message: str) -> None:
        """Nothing after this can be read: answer it in its turn, that is after the requests before it."""
        if self._running is None and self.cycle is not None and self.cycle.more_body:
            self.transport.close()  # the rest of a body whose request has its answer
            return
        complaint = refusal(status, "request_timeout" if status == 408 else "invalid_http", message)
        if self._running is None:
            self._refuse(complaint)
        elif self._running is self.cycle and self.cycle.more_body:
            has_begun, self._running.disconnected = self._running.response_started, True
            self._running.message_event.set()
            if has_begun:
                self.transport.close()
            else:
                self._refuse(complaint)
        else:
            self._complaint = complaint

    def _refuse(self, complaint: bytes) -> None:
        """Write it, and read what else is sent for a while, so that it arrives."""
        self._refused = True
        self._heads_are_complete()
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self.transport.write(complaint)
        gathered = cast("GatheredTransport", self.transport)
        gathered.flush()
        if gathered.can_write_eof():
            gathered.write_eof()
            self._head_timer = self.loop.call_later(REFUSED_SECONDS, gathered.close)
        else:
            gathered.close()
