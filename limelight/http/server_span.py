"""The SERVER span of one HTTP exchange: who its parent is, what it is called, what it says.

Names and status follow the semantic conventions of OpenTelemetry for HTTP (1.45). The query is left out: nobody knows
what clients put there.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from limelight.quoting import encodable
from limelight.telemetry import conventions as names
from limelight.telemetry.http_counters import METHODS, OTHER_METHOD
from limelight.telemetry.shield import Shield

_W3C = TraceContextTextMapPropagator()
_PARAMETER_TYPE = re.compile(r":\w+}")


class ServerSpan:
    """The span, opened late, so that samplers see the route. It is never made the current one.

    Args:
        shield: from what the tracer raises.

    Attributes:
        named: leads to the span, for links and logs, and never raises, as a host's may; invalid before it is open, and
            if there is none.
    """

    __slots__ = ("_context", "_links", "_shield", "_span", "_tracer", "named")

    def __init__(self, tracer: Tracer, shield: Shield) -> None:
        self._tracer = tracer
        self._shield = shield
        self._context: Context | None = None
        self._span: Span | None = None
        self.named: Span = trace.INVALID_SPAN
        self._links: list[SpanContext] = []

    def open(self, scope: Any, start_ns: int, *, traced: bool) -> Context:
        """Begin, if that has not happened, and return the context for what belongs below it.

        Args:
            start_ns: Unix nanoseconds.
            traced: False: there is no span; what belongs below it belongs below its parent.
        """
        if self._context is None:
            self._context = Context()
            with self._shield:
                self._context = parent_context(scope["headers"])
                if traced:
                    self._span = self._started(scope, self._context, start_ns)
                    self.named = trace.NonRecordingSpan(self._span.get_span_context())
                    self._context = trace.set_span_in_context(self._span, self._context)
        return self._context

    def _started(self, scope: Any, parent: Context, start_ns: int) -> Span:
        route = route_of(scope)
        return self._tracer.start_span(
            span_name(method_of(scope), route),
            context=parent,
            kind=SpanKind.SERVER,
            attributes=opening_attributes(scope, route),
            links=[Link(linked) for linked in self._links],
            start_time=start_ns,
        )

    @property
    def span_context(self) -> SpanContext:
        """Names the span for links; invalid if there is none."""
        return self.named.get_span_context()

    def link(self, span_context: SpanContext) -> None:
        """It has to do with another span, without being its child."""
        if not span_context.is_valid:
            return
        if self._span is None:
            self._links.append(span_context)
        else:
            with self._shield:
                self._span.add_link(span_context)

    def end(self, attributes: Mapping[str, str | int | float], error: str | None, end_ns: int) -> str | None:
        """End it, and return the id of its trace if it is recorded.

        Args:
            error: what the status says if it is that of an error; None: it is not.
        """
        if self._span is None:
            return None
        is_recorded = False
        with self._shield:
            if self._span.is_recording():
                is_recorded = self.span_context.trace_flags.sampled
                self._span.set_attributes(attributes)
                if error is not None:
                    self._span.set_status(Status(StatusCode.ERROR, error))
        with self._shield:
            self._span.end(end_time=end_ns)
        return trace.format_trace_id(self.span_context.trace_id) if is_recorded else None


def parent_context(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """The context that holds the parent of an exchange's span, if it has one.

    A valid span that is current (of a host that has instrumented itself) wins; without one the client's `traceparent`
    and `tracestate` count. What is malformed, a `traceparent` that comes twice included, is ignored.
    """
    current = otel_context.get_current()
    if trace.get_current_span(current).get_span_context().is_valid:
        return current
    carrier: dict[str, list[str]] = {}
    for name, value in headers:
        known = name.lower()
        if known in (b"traceparent", b"tracestate"):
            carrier.setdefault(known.decode(), []).append(value.decode("latin-1"))
    if len(carrier.get("traceparent", ())) != 1:
        return current
    return _W3C.extract({name: ",".join(values) for name, values in carrier.items()}, context=current)


def route_of(scope: Any) -> str | None:
    """The template of the route that answers, under the path where a host has mounted us; None: there is none."""
    template = scope.get("path_template")
    return None if template is None else scope.get("root_path", "") + _PARAMETER_TYPE.sub("}", template)


def method_of(scope: Any) -> str:
    """The method, or `_OTHER`: clients may make up their own."""
    method: str = scope["method"]
    return method if method in METHODS else OTHER_METHOD


def span_name(method: str, route: str | None) -> str:
    """`POST /v1/completions`; without a route the method alone."""
    name = "HTTP" if method == OTHER_METHOD else method
    return name if route is None else f"{name} {route}"


def opening_attributes(scope: Any, route: str | None) -> dict[str, str | int]:
    """What is known before the answer, so that samplers can see it."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    method = method_of(scope)
    attributes: dict[str, str | int] = {
        names.HTTP_REQUEST_METHOD: method,
        names.URL_PATH: encodable(scope["path"]),
        names.URL_SCHEME: scope.get("scheme", "http"),
        names.NETWORK_PROTOCOL_VERSION: scope.get("http_version", "1.1"),
    }
    if method == OTHER_METHOD:
        attributes[names.HTTP_REQUEST_METHOD_ORIGINAL] = encodable(scope["method"])
    if route is not None:
        attributes[names.HTTP_ROUTE] = route
    if server := scope.get("server"):
        attributes[names.SERVER_ADDRESS] = server[0]
        if server[1] is not None:  # a Unix socket has no port
            attributes[names.SERVER_PORT] = server[1]
    if client := scope.get("client"):
        attributes[names.CLIENT_ADDRESS] = client[0]
    if agent := headers.get(b"user-agent"):
        attributes[names.USER_AGENT_ORIGINAL] = encodable(agent.decode("latin-1"))
    return attributes
