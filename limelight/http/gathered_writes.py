"""Writes of one turn of the event loop, handed to their sockets together at its end.

A step's tokens reach all streams in one turn. Written one by one between the work for the next stream, each write wakes
its reader anew, which costs several times what the write does; written in a row they find the readers awake.
"""

import asyncio
from typing import Any


class GatheredTransport:
    """A transport whose writes wait until the callbacks that are ready now have run. Everything else goes through.

    Args:
        linger_seconds: how long after `close` its client may take to read what is left.

    Attributes:
        num_writes: so far.
    """

    __slots__ = ("_inner", "_linger_seconds", "_loop", "_parts", "num_writes")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop, linger_seconds: float) -> None:
        self._inner = inner
        self._loop = loop
        self._linger_seconds = linger_seconds
        self._parts: list[bytes] = []
        self.num_writes = 0

    def write(self, data: bytes) -> None:
        """Queue `data`."""
        if not data:
            return
        self.num_writes += 1
        if not self._parts:
            self._loop.call_soon(self.flush)  # the streams that write in this turn follow one another in the next
        self._parts.append(data)

    def flush(self) -> None:
        """Hand over what is queued; nobody is there for it if the connection was lost meanwhile."""
        parts, self._parts = self._parts, []
        if parts and not self._inner.is_closing():
            self._inner.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """Hand over what is queued, then close."""
        self.flush()
        self._inner.close()
        if self._inner.get_write_buffer_size():
            self._loop.call_later(self._linger_seconds, self._inner.abort)

    def abort(self) -> None:
        """Drop what is queued and close."""
        self._parts.clear()
        self._inner.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
