"""Clients that have shut their sending half: some still read, and some have left, which looks the same at first.

What tells them apart is an answer to something written: who has left resets the connection. So `100 Continue`, which
HTTP/1.1 allows before any answer, is written once a second until the answer begins, and the socket is asked for errors;
an event loop hears of none by itself, since it reads no more. A stream proves by its own writes that it is still read.
"""

import asyncio
import socket
from collections.abc import Callable

from limelight.http.gathered_writes import GatheredTransport

PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
FIRST_LOOKS_SECONDS = (0.0, 0.01, 0.1)
LOOK_SECONDS = 1.0


class HalfClosedWatch:
    """Aborts a connection whose client turns out to have left.

    Args:
        transport: that of the connection.
        may_probe: whether an interim response may be written now.
    """

    def __init__(
        self, transport: GatheredTransport, loop: asyncio.AbstractEventLoop, may_probe: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._may_probe = may_probe
        self._num_looks = 0
        self._num_writes = transport.num_writes
        self._timer = loop.call_soon(self._look)

    def cancel(self) -> None:
        """Watch no longer."""
        self._timer.cancel()

    def _look(self) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        if transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport.abort()
            return
        later = self._num_looks >= len(FIRST_LOOKS_SECONDS)
        if self._num_looks == 0 or later:
            if self._may_probe():
                transport.write(PROBE)
            elif later and transport.num_writes == self._num_writes:
                transport.abort()  # nothing was written that could have shown it, so it counts as gone
                return
            self._num_writes = transport.num_writes
        seconds = LOOK_SECONDS if later else FIRST_LOOKS_SECONDS[self._num_looks]
        self._num_looks += 1
        self._timer = self._loop.call_later(seconds, self._look)
