"""The threading HTTP server of tests: it says nothing when a client hangs up, whoever reads stderr at that moment."""

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """Closing it waits for the threads of its answers, so that none speaks within a later test."""

    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what is no end of a connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
