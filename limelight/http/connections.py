"""How many connections a server holds, and which of them makes way when there are too many."""

import math
from functools import partial
from typing import Any, Protocol

import msgspec

from limelight.errors import ConfigError

PROBE_RESERVE = 16
"""Connections beyond the limit that are taken for probes alone."""
PROBE_SECONDS = 2.0
"""How long such a connection may take to say what it wants."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What connections may cost.

    Attributes:
        max_connections: open at once. For one more, the one makes way that has waited longest without a complete
            request head; where none has, it is answered with 503.
        head_seconds: from the first byte of a request to the end of its headers, and from connecting to the first
            request.
        send_seconds: how long a client may take nothing of what is written to it before it is cut off.

    Raises:
        ConfigError: names the field, the value and the fix.
    """

    max_connections: int = 4096
    head_seconds: float = 30.0
    send_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.max_connections < 1:
            raise ConfigError(f"max_connections is {self.max_connections}; it must be at least 1")
        for name in ("head_seconds", "send_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")


class Connection(Protocol):
    """What the table needs of a connection."""

    def make_way(self) -> None:
        """Close: it waits, and another one needs its place."""


class ConnectionTable:
    """The open connections of one server. Belongs to its event loop."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # in the order in which they began to

    def opened(self, connection: Connection) -> int:
        """Count it, and have others make way for it; returns by how many there still are too many."""
        while len(self._open) >= self.limits.max_connections and self._waiting:
            oldest = next(iter(self._waiting))
            self.lost(oldest)
            oldest.make_way()
        self._open.add(connection)
        self._waiting[connection] = None
        return len(self._open) - self.limits.max_connections

    def waits(self, connection: Connection) -> None:
        """It has no complete request head any more."""
        if connection in self._open:
            self._waiting[connection] = None

    def works(self, connection: Connection) -> None:
        """It has one."""
        self._waiting.pop(connection, None)

    def lost(self, connection: Connection) -> None:
        """It is closed, or about to be."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


def http_protocol(limits: ConnectionLimits) -> Any:
    """What uvicorn's `Config` takes as `http`, for one server."""
    try:
        from limelight.http.uvicorn_protocol import BoundedHttpToolsProtocol
    except ImportError:  # where there is no httptools
        return "h11"  # which bounds heads, but not connections
    return partial(BoundedHttpToolsProtocol, table=ConnectionTable(limits))
