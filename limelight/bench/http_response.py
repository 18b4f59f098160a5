"""One HTTP/1.1 response, read as its bytes come. Knows no sockets and no clock."""

MAX_HEAD_BYTES = 65536


class HttpResponse:
    """Takes bytes and gives whole lines of the body, chunked or not.

    Attributes:
        status: of the response; None until its head is complete.
        reason: the words behind the status.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self._chunked = False
        self._left_bytes = 0  # of the chunk in hand, with the two bytes that end it
        self._unread = bytearray()
        self._line = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Lines of the body that these bytes complete, without their ends.

        Raises:
            ValueError: this is no HTTP.
        """
        self._unread += data
        if self.status is None and not self._read_head():
            return []
        if self._chunked:
            body = self._read_chunks()
        else:
            body = bytes(self._unread)
            self._unread.clear()
        *lines, self._line = (self._line + body).split(b"\n")
        return [line.rstrip(b"\r") for line in lines]

    def rest(self) -> bytes:
        """The last line, where nothing ends it."""
        return self._line

    def _read_head(self) -> bool:
        end = self._unread.find(b"\r\n\r\n")
        if end < 0:
            if len(self._unread) > MAX_HEAD_BYTES:
                raise ValueError("the head of the response does not end")
            return False
        first, *headers = bytes(self._unread[:end]).split(b"\r\n")
        del self._unread[: end + 4]
        protocol, _, status = first.decode("latin-1").partition(" ")
        code, _, self.reason = status.partition(" ")
        if not protocol.startswith("HTTP/") or not code.isdigit():
            raise ValueError(f"this is no HTTP: {first[:80]!r}")
        self.status = int(code)
        for header in headers:
            name, _, value = header.lower().partition(b":")
            self._chunked = self._chunked or (name == b"transfer-encoding" and b"chunked" in value)
        return True

    def _read_chunks(self) -> bytes:
        body = []
        while True:
            if not self._left_bytes:
                end = self._unread.find(b"\r\n")
                if end < 0:
                    break
                size = int(self._unread[:end].split(b";")[0], 16)
                if size == 0:
                    break
                del self._unread[: end + 2]
                self._left_bytes = size + 2
            piece = bytes(self._unread[: self._left_bytes])
            if not piece:
                break
            del self._unread[: len(piece)]
            body.append(piece[: max(self._left_bytes - 2, 0)])
            self._left_bytes -= len(piece)
        return b"".join(body)
