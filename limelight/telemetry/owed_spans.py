"""Spans that are still to be made of what has ended: a few in each turn of the event loop, since each costs it time."""

import asyncio
from collections import deque
from collections.abc import Iterator

SPANS_PER_TURN = 6
"""As many as a request with one choice has: well below a millisecond with the SDK of OpenTelemetry."""


class OwedSpans:
    """Works off iterators that make one span at each step, in the order in which they were added."""

    def __init__(self) -> None:
        self._owed: deque[Iterator[None]] = deque()
        self._all_made = asyncio.Event()

    def add(self, spans: Iterator[None]) -> None:
        """Make these in turns of the running loop that come."""
        self._owed.append(spans)
        if len(self._owed) == 1:
            self._all_made.clear()
            self._later()

    def make_all(self) -> None:
        """Make all of them now."""
        while self._owed:
            self._make_one()

    async def wait_until_made(self) -> None:
        """Until nothing is owed."""
        while self._owed:
            await self._all_made.wait()

    def _later(self) -> None:
        asyncio.get_running_loop().call_soon(self._make_some)

    def _make_some(self) -> None:
        for _ in range(SPANS_PER_TURN):
            if not self._owed:
                return
            self._make_one()
        if self._owed:
            self._later()

    def _make_one(self) -> None:
        if next(self._owed[0], self) is self:  # it has come to its end
            self._owed.popleft()
            if not self._owed:
                self._all_made.set()
