"""Writes of one turn of the event loop, handed to their sockets together at its end.

A step's tokens reach all streams in one turn. Written one by one between the work for the next stream, each write wakes
its reader anew, which costs several times what the write does; written in a row they find the readers awake.
"""

import asyncio
from typing import Any

_outboxes: dict[asyncio.AbstractEventLoop, "dict[GatheredTransport, None]"] = {}


class GatheredTransport:
    """A transport whose writes wait until the callbacks that are ready now have run. Everything else goes through."""

    __slots__ = ("_inner", "_loop", "_parts")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Queue `data`."""
        if not data:
            return
        if not self._parts:
            outbox = _outboxes.get(self._loop)
            if outbox is None:
                outbox = _outboxes[self._loop] = {}
                self._loop.call_soon(_write_all, self._loop)
            outbox[self] = None
        self._parts.append(data)

    def flush(self) -> None:
        """Hand over what is queued."""
        if self._parts:
            parts, self._parts = self._parts, []
            self._inner.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """Hand over what is queued, then close."""
        self.flush()
        self._inner.close()

    def abort(self) -> None:
        """Drop what is queued and close."""
        self._parts.clear()
        self._inner.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _write_all(loop: asyncio.AbstractEventLoop) -> None:
    for transport in _outboxes.pop(loop):
        transport.flush()
