"""The SERVER span of one HTTP exchange: who its parent is, what it is called, what it says.

Names and status follow the semantic conventions of OpenTelemetry for HTTP (1.45). The query is left out: nobody knows
what clients put there.
"""

import re
from collections.abc import Iterable
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from limelight.quoting import shorten
from limelight.telemetry import conventions as names
from limelight.telemetry.http_counters import METHODS, OTHER_METHOD

MAX_CHARACTERS = 200
"""Of what a client may make as long as it likes."""

_W3C = TraceContextTextMapPropagator()
_PARAMETER_TYPE = re.compile(r":\w+}")


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
        names.URL_PATH: shorten(scope["path"], MAX_CHARACTERS),
        names.URL_SCHEME: scope.get("scheme", "http"),
        names.NETWORK_PROTOCOL_VERSION: scope.get("http_version", "1.1"),
    }
    if method == OTHER_METHOD:
        attributes[names.HTTP_REQUEST_METHOD_ORIGINAL] = shorten(scope["method"], MAX_CHARACTERS)
    if route is not None:
        attributes[names.HTTP_ROUTE] = route
    if server := scope.get("server"):
        attributes[names.SERVER_ADDRESS] = server[0]
        if server[1] is not None:  # a Unix socket has no port
            attributes[names.SERVER_PORT] = server[1]
    if client := scope.get("client"):
        attributes[names.CLIENT_ADDRESS] = client[0]
    if agent := headers.get(b"user-agent"):
        attributes[names.USER_AGENT_ORIGINAL] = shorten(agent.decode("latin-1"), MAX_CHARACTERS)
    return attributes
