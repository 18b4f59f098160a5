"""Collectors that do not do what they should, on real sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

FOREVER = 30.0
"""Seconds that a collector takes which is as good as dead."""


@contextmanager
def canned(answer: bytes | None) -> Iterator[str]:
    """Address of a server that answers every connection with these bytes, or resets it."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with closing(connection):
                connection.settimeout(60)
                if answer is None:
                    connection.recv(1)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    continue
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                head, _, body = head.partition(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                while len(body) < length:
                    body += connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def closed_port() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
