"""Ends parts that own threads, within bounds: a thread that never comes back is left behind, and said to be."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

import anyio

logger = logging.getLogger(__name__)

SECONDS_FOR_A_THREAD = 1.0
"""To end, however little time there is: one that hangs takes none from those that do not."""


class Closing:
    """The bounds of an engine's end.

    Attributes:
        left_behind: the parts whose threads were still busy, by name; they keep their memory.
    """

    def __init__(self) -> None:
        self.left_behind: tuple[str, ...] = ()
        self._give_up_at = math.inf  # by the loop's clock
        self._waiting: anyio.CancelScope | None = None

    def give_up_within(self, seconds: float) -> None:
        """From whatever is closed now or later, be back after so long."""
        self._give_up_at = min(self._give_up_at, asyncio.get_running_loop().time() + seconds)
        if self._waiting is not None:
            self._waiting.deadline = self._deadline()

    async def close(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Wait for the threads of a part. The wait cannot be cancelled."""
        with anyio.CancelScope(shield=True, deadline=self._deadline()) as self._waiting:
            await close()
        if self._waiting.cancelled_caught:
            self.left_behind += (name,)
            logger.error(
                "the %s is still busy, and a thread cannot be stopped from outside: it is left behind, its memory "
                "comes back when the process ends",
                name,
            )
        self._waiting = None

    def _deadline(self) -> float:
        return max(self._give_up_at, asyncio.get_running_loop().time() + SECONDS_FOR_A_THREAD)
