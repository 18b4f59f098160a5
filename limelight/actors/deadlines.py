"""The watch over the limits of time that one request brought."""

import asyncio
import time
from collections.abc import Callable

from limelight.errors import DeadlineExceeded
from limelight.generation import Deadlines
from limelight.telemetry.timeline import RequestTimeline


class DeadlineWatch:
    """Timers from admission to the end of a request.

    Args:
        timeline: from whose beginning the limits count, and that says whether a step has worked on the request.
        has_output: whether a token has been drawn.
        expired: told of a limit that ran out, by name, with the error for a request that has no output.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        timeline: RequestTimeline,
        has_output: Callable[[], bool],
        expired: Callable[[str, DeadlineExceeded], None],
    ) -> None:
        self._timeline = timeline
        self._has_output = has_output
        self._expired = expired
        loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        for name in deadlines.__struct_fields__:
            limit = getattr(deadlines, name)
            if limit is not None:
                left = timeline.arrived_at + limit / 1000 - time.monotonic()
                self._timers.append(loop.call_later(max(left, 0.0), self._run_out, name, limit))

    def close(self) -> None:
        """Watch no longer."""
        for timer in self._timers:
            timer.cancel()

    def _run_out(self, name: str, limit: float) -> None:
        if name == "max_queue_ms" and any(choice.scheduled_at is not None for choice in self._timeline.choices):
            return
        if name != "max_total_ms" and self._has_output():
            return
        self._expired(name, DeadlineExceeded(f"{_BROKEN[name]} within {limit:g} ms ({name})", param=name))


_BROKEN = {
    "max_queue_ms": "no step worked on the request",
    "max_ttft_ms": "the request had no token",
    "max_total_ms": "the request had no token",
}
