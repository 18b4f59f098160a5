"""The HTTP session of an OTLP exporter: it remembers how the last request went, in words for people."""

import http.client
import socket
from collections.abc import Iterator
from typing import Any

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from limelight.quoting import explanation

GRPC_PORT = ":4317/"


class NotedSession(requests.Session):
    """As `requests.Session`; the exporter tells its caller no reasons.

    Attributes:
        num_rejected: items that the collector has not taken of a request that it has answered well.
        reason: why the last request, or a part of it, got nowhere; None: it went well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_rejected = 0
        self.reason: str | None = None

    def outcome(self) -> tuple[int, str | None]:
        """Of the last request."""
        return self.num_rejected, self.reason

    def request(self, method: str, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request.

        Raises:
            requests.RequestException: there is no answer, or it leads elsewhere.
        """
        self.num_rejected = 0
        try:
            response = super().request(method, url, *args, **kwargs)
        except requests.RequestException as error:
            self.reason = reason_of(error)
            if GRPC_PORT in str(url):
                self.reason += "; 4317 is mostly the port for gRPC, 4318 that for HTTP"
            raise
        self.reason = None if response.ok else f"HTTP {response.status_code}"
        if response.is_redirect:  # which an exporter takes for success, though nobody has got anything
            self.reason = f"HTTP {response.status_code} leads to another address"
            raise requests.TooManyRedirects(self.reason, response=response)
        if response.ok:
            self._read_rejected(response)
        return response

    def _read_rejected(self, response: requests.Response) -> None:
        """A collector may say that it has taken a part only; the answers for metrics have the same form."""
        if not response.headers.get("content-type", "").startswith("application/x-protobuf"):
            return
        try:
            rejected = ExportTraceServiceResponse.FromString(response.content).partial_success
        except DecodeError:
            return
        if rejected.rejected_spans > 0:
            self.num_rejected = rejected.rejected_spans
            self.reason = f"rejected: {explanation(rejected.error_message)}"


def reason_of(error: BaseException) -> str:
    """What kept a request from its answer, in a few words."""
    chain = list(_chain(error))
    for cause in reversed(chain):
        if isinstance(cause, http.client.RemoteDisconnected):
            return "the connection was closed without an answer"
        if isinstance(cause, http.client.HTTPException):
            return f"the answer is no HTTP ({type(cause).__name__})"
        if isinstance(cause, socket.gaierror | ConnectionError) and cause.strerror:
            return cause.strerror[0].lower() + cause.strerror[1:]
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in chain):
        return "no answer in time"
    return explanation(f"{type(error).__name__}: {error}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and what stands behind it, the nearest first; urllib3 keeps some of it in arguments."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        behind = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        waiting += [part for part in behind if isinstance(part, BaseException)]
