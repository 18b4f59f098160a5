"""A real OTLP/HTTP receiver on a socket: what exporters send is decoded and kept."""

import gzip
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.quiet_server import QuietServer


class OtlpReceiver:
    """Takes traces and metrics.

    Args:
        delay_seconds: how long each answer takes, or until the receiver is closed.
        status: of each answer.

    Attributes:
        url: base address, for `OTEL_EXPORTER_OTLP_ENDPOINT`; `traces_url` is where spans go.
        traces, metrics: requests received, in order.
        headers: those of each request.
    """

    def __init__(self, delay_seconds: float = 0.0, status: int = 200) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self._closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver._closing.wait(delay_seconds)
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                if self.path == "/v1/traces":
                    receiver.traces.append(ExportTraceServiceRequest.FromString(body))
                else:
                    receiver.metrics.append(ExportMetricsServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.traces_url = f"{self.url}/v1/traces"

    @property
    def spans(self) -> list[Span]:
        """All spans received."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def close(self) -> None:
        """Stop listening, and end the answers that wait."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def otlp_receiver(delay_seconds: float = 0.0, status: int = 200) -> Iterator[OtlpReceiver]:
    """A receiver that listens within the block."""
    receiver = OtlpReceiver(delay_seconds, status)
    try:
        yield receiver
    finally:
        receiver.close()


def attributes_of(entries: Iterable[KeyValue]) -> dict[str, object]:
    """Attributes of a received span, event, link or resource as Python values."""
    return {entry.key: _value(entry.value) for entry in entries}


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)
