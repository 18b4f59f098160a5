"""The body of one streamed response, written part by part."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from litestar.types import Send


class StreamBody:
    """Writes the body of one response, and something to keep it alive when it has been quiet for too long."""

    __slots__ = ("_busy", "_last_written", "_send")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._busy = False
        self._last_written = time.monotonic()

    @property
    def quiet_seconds(self) -> float:
        """Since the last part went out."""
        return time.monotonic() - self._last_written

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send a part; it may wait for a client that reads slowly."""
        self._busy = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._busy = False
        self._last_written = time.monotonic()

    @asynccontextmanager
    async def kept_alive(self, seconds: float | None, keep_alive: bytes) -> AsyncIterator[None]:
        """Inside the block `keep_alive` goes out whenever nothing has for `seconds`; None: never.

        One task that sleeps through: a timer for each event would cost more than the event.
        """
        if seconds is None:
            yield
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_alive, seconds, keep_alive)
            yield
            tasks.cancel_scope.cancel()

    async def _keep_alive(self, seconds: float, keep_alive: bytes) -> None:
        while True:
            quiet = self.quiet_seconds
            if quiet < seconds:
                await anyio.sleep(seconds - quiet)
            elif self._busy:
                await anyio.sleep(seconds)
            else:
                await self.write(keep_alive)
