"""An OTLP/HTTP receiver in a process of its own that counts spans: what a collector is to those who export.

    python -m benchmarks.otlp_receiver

It prints its address, takes traces and metrics, tells at `GET /counts` how many spans of each name have come, and ends
with its standard input.
"""

import gzip
import json
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class CountingReceiver(ThreadingHTTPServer):
    """Listens on a free port of this machine.

    Attributes:
        counts: spans by the first word of their name, which is no model's.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def received(self, body: bytes) -> None:
        """Count what is in an export."""
        export = ExportTraceServiceRequest.FromString(body)
        names = [
            span.name.partition(" ")[0]
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.counts.update(names)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CountingReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/traces":  # metrics are taken, too
            self.server.received(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
        self._answer("application/x-protobuf", b"")

    def do_GET(self) -> None:
        self._answer("application/json", json.dumps(self.server.counts).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as inherited)
        """Nothing: what is measured is measured elsewhere."""

    def _answer(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    with CountingReceiver() as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{receiver.server_port}", flush=True)
        sys.stdin.read()
        receiver.shutdown()


if __name__ == "__main__":
    main()
