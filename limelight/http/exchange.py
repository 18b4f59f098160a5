"""The record of one HTTP exchange, and its SERVER span: from the request's arrival to the last byte of its answer.

It is made outside of the framework, so there is one, too, for unknown routes, wrong methods, refused keys and hosts. No
span is ever made the current one: what belongs below it is told its context.
"""

import time
from collections.abc import Mapping
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from limelight.errors import LimelightError, RequestCancelled, RequestExpired
from limelight.http.keys.principal import Principal
from limelight.http.request_id import request_id
from limelight.http.server_span import ServerSpan, method_of, route_of
from limelight.http.server_timing import timing_headers
from limelight.quoting import encodable
from limelight.telemetry import conventions as names
from limelight.telemetry.request_log import log_exchange
from limelight.telemetry.shield import Shield
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import Delivery, Ending, RequestTimeline

UNTRACED = {"untraced": True}
"""`opt` of a route that would only be noise in traces."""
GENERATES = {"generates": True}
"""`opt` of a route whose answers tell how long their parts took."""
CLIENT_CLOSED_REQUEST = 499
"""What is counted where the client left before there was a status; nginx's number."""

_KEY = "limelight.exchange"


class Exchange:
    """What is known of one HTTP exchange. Belongs to the event loop.

    Args:
        scope, receive, send: of the ASGI request, as the server gave them.
        telemetry: whose tracer makes the span, and whose counters are told of the end.
        shield: from what the tracer raises.
        timing_origins: web origins that may read the timings.

    Attributes:
        arrived_at, first_byte_at, last_byte_at: monotonic seconds; the last two are None until then.
        status: of the answer, None as long as there is none.
        delivery: how the client takes the answer.
        left_at: when the client was found to be gone before its answer was complete.
        is_cut: whether a `send` has failed, since the client had gone.
        timelines: of the engine's requests behind it, in order; not of those that were refused at once.
        reached_engine: whether it asked anything of the engine.
    """

    __slots__ = (
        "_ended",
        "_ending",
        "_error",
        "_error_type",
        "_receive",
        "_scope",
        "_send",
        "_span",
        "_telemetry",
        "_timing_origins",
        "_unix_offset_ns",
        "arrived_at",
        "delivery",
        "first_byte_at",
        "is_cut",
        "last_byte_at",
        "left_at",
        "reached_engine",
        "status",
        "timelines",
    )

    def __init__(
        self,
        scope: Any,
        receive: Receive,
        send: Send,
        telemetry: Telemetry,
        shield: Shield,
        timing_origins: tuple[str, ...] = (),
    ) -> None:
        self.arrived_at = time.monotonic()
        self._unix_offset_ns = time.time_ns() - round(self.arrived_at * 1e9)
        self._scope: Any = scope
        self._receive = receive
        self._send = send
        self._telemetry = telemetry
        self._span = ServerSpan(telemetry.tracing.tracer, shield)
        self._timing_origins = timing_origins
        self.first_byte_at: float | None = None
        self.last_byte_at: float | None = None
        self.left_at: float | None = None
        self.is_cut = False
        self.status: int | None = None
        self.delivery = Delivery()
        self.timelines: list[RequestTimeline] = []
        self.reached_engine = False
        self._error_type: str | None = None
        self._error: str | None = None  # what the span's status says if it is one of an error
        self._ending: Ending | None = None
        self._ended = False

    # ---- the ASGI side

    async def receive(self) -> Any:
        """The next message from the client."""
        message = await self._receive()
        if message["type"] == "http.disconnect" and self.left_at is None:
            self.left_at = time.monotonic()
        return message

    async def send(self, message: Any) -> None:
        """Hand a message to the server, and measure how long it waits for the socket."""
        if message["type"] != "http.response.body":
            if message["type"] == "http.response.start":
                self._answer_begins(message)
            await self._hand_over(message)
            return
        body = message.get("body", b"")
        began_at = self.delivery.begin()
        try:
            await self._hand_over(message)
        finally:
            self.delivery.end(began_at, len(body))
        if not message.get("more_body", False) and not self._ended:
            self.last_byte_at = time.monotonic()
            self.end()

    async def _hand_over(self, message: Any) -> None:
        try:
            await self._send(message)
        except OSError:  # which servers raise when the client has gone (ASGI specification, HTTP 2.4)
            self.is_cut = True
            if self.left_at is None:
                self.left_at = time.monotonic()
            raise

    def _answer_begins(self, message: Any) -> None:
        self.open()
        self.status = message["status"]
        self.first_byte_at = time.monotonic()
        if self._route_has(GENERATES):
            headers = timing_headers(
                self.timelines, self.first_byte_at - self.arrived_at, _origin(self._scope), self._timing_origins
            )
            message["headers"] = [*message.get("headers", ()), *headers]

    # ---- what handlers tell it

    def open(self) -> Context:
        """Open the span, if that has not happened, and return the context for what belongs below it.

        The route is known by then, so that samplers see it.
        """
        return self._span.open(self._scope, self._unix_ns(self.arrived_at), traced=not self._route_has(UNTRACED))

    @property
    def span_context(self) -> SpanContext:
        """Names the span for links; invalid if there is none."""
        self.open()
        return self._span.span_context

    def link(self, span_context: SpanContext) -> None:
        """What is asked for was begun by another exchange."""
        self._span.link(span_context)

    def attach(self, timeline: RequestTimeline) -> None:
        """One of the engine's requests is behind this exchange."""
        self.timelines.append(timeline)
        timeline.delivery = self.delivery

    def refused(self, code: str | None) -> None:
        """The answer is an error with this code; the status says how bad it is."""
        self._error_type = code

    def broke_off(self, error: LimelightError) -> None:
        """The answer ends with this error after its status line."""
        self._error_type = error.code or names.ERROR_TYPE_OTHER
        if isinstance(error, RequestExpired):
            self._ending = Ending.EXPIRED
        elif isinstance(error, RequestCancelled):
            self._ending = Ending.ABORTED
            return
        self._error = type(error).__name__

    # ---- the end

    def failed(self, error: BaseException) -> None:
        """The application let `error` through."""
        if self._ended:
            return
        if isinstance(error, Exception):
            self._error_type = self._error_type or type(error).__name__
            self._error = type(error).__name__
            self.status = self.status or 500
        elif self.left_at is None:  # a task that is cancelled serves nobody any more
            self.left_at = time.monotonic()

    def end(self) -> None:
        """The last byte is out, or the client is gone. Idempotent."""
        if self._ended:
            return
        self.open()
        self._ended = True
        scope, self._scope = self._scope, {}  # holds the body
        ended_at = self.last_byte_at or self.left_at or time.monotonic()
        if self.last_byte_at is None and self.left_at is not None:
            self._error_type = self._error_type or RequestCancelled.code
            self._ending = self._ending or Ending.ABORTED
        if self._error is None and self.status is not None and self.status >= 500:
            self._error = self._error_type or str(self.status)
        trace_id = self._span.end(self._closing_attributes(scope), self._error, self._unix_ns(ended_at))
        if not self.reached_engine:
            self._log(scope, ended_at)
        self._telemetry.http.ended(
            method=method_of(scope),
            route=route_of(scope),
            status=self.status or CLIENT_CLOSED_REQUEST,
            seconds=ended_at - self.arrived_at,
            reached_engine=self.reached_engine,
            delivery=self.delivery,
            trace_id=trace_id,
        )

    def _closing_attributes(self, scope: Any) -> Mapping[str, str | int | float]:
        delivery = self.delivery
        attributes: dict[str, str | int | float] = {
            names.HTTP_REQUEST_ID: request_id(scope),
            names.HTTP_RESPONSE_BODY_SIZE: delivery.num_bytes,
            names.DELIVERY_NUM_WRITES: delivery.num_writes,
            names.DELIVERY_SECONDS: delivery.seconds,
            names.DELIVERY_LONGEST_SECONDS: delivery.longest_seconds,
        }
        if self.status is not None:
            attributes[names.HTTP_RESPONSE_STATUS_CODE] = self.status
        if self.first_byte_at is not None:
            attributes[names.TIME_TO_FIRST_BYTE] = self.first_byte_at - self.arrived_at
        if isinstance(asker := scope.get("user"), Principal):
            attributes[names.OWNER] = encodable(asker.name)
        if self._ending is not None:
            attributes[names.ENDING] = self._ending.value
        if self._error_type is not None:
            attributes[names.ERROR_TYPE] = self._error_type
        elif self.status is not None and self.status >= 400:
            attributes[names.ERROR_TYPE] = str(self.status)
        return attributes

    def _log(self, scope: Any, ended_at: float) -> None:
        asker = scope.get("user")
        log_exchange(
            http_request_id=request_id(scope),
            method=method_of(scope),
            route=route_of(scope),
            status=self.status or CLIENT_CLOSED_REQUEST,
            seconds=ended_at - self.arrived_at,
            code=self._error_type,
            owner=asker.name if isinstance(asker, Principal) else None,
            span=self._span.named,
        )

    def _route_has(self, mark: Mapping[str, bool]) -> bool:
        handler = self._scope.get("route_handler")
        return handler is not None and mark.keys() <= handler.opt.keys()

    def _unix_ns(self, at: float) -> int:
        return round(at * 1e9) + self._unix_offset_ns


class ExchangeRecorder:
    """ASGI middleware: keeps the record of every HTTP exchange, in its scope, and ends it in every case."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry, timing_origins: tuple[str, ...]) -> None:
        self._app = app
        self._telemetry = telemetry
        self._shield = Shield("the tracer")
        self._timing_origins = timing_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        record = Exchange(scope, receive, send, self._telemetry, self._shield, self._timing_origins)
        kept: Any = scope
        kept[_KEY] = record
        try:
            await self._app(scope, record.receive, record.send)
        except BaseException as error:
            if record.is_cut and isinstance(error, Exception):
                return  # it comes of that, and concerns nobody
            record.failed(error)
            raise
        finally:
            record.end()
            del kept[_KEY]


def exchange_of(scope: Any) -> Exchange:
    """The record of the exchange in `scope`."""
    exchange: Exchange = scope[_KEY]
    return exchange


def _origin(scope: Any) -> bytes | None:
    return next((value for name, value in scope["headers"] if name.lower() == b"origin"), None)
