"""The requests of an engine as they are now: those that run, and the last ones that have ended."""

import time
from collections.abc import Callable
from itertools import islice

from limelight.telemetry.request_view import RequestView, Standing, request_view
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import Phase, RequestTimeline


class LiveView:
    """Views on demand; nothing is kept.

    Args:
        telemetry: has the timelines.
        standing: asks the scheduler about a request.
    """

    def __init__(self, telemetry: Telemetry, standing: Callable[[str], Standing | None]) -> None:
        self._telemetry = telemetry
        self._standing = standing

    def live(self) -> list[RequestView]:
        """Requests that have been admitted and not ended, oldest first."""
        return [self.of(timeline) for timeline in self._telemetry.live.values()]

    def recent(self, number: int) -> list[RequestView]:
        """The last `number` that have ended, refused ones included, newest first."""
        return [self.of(timeline) for timeline in islice(reversed(self._telemetry.recent), number)]

    def find(self, request_id: str) -> RequestTimeline | None:
        """The live request with this id, or else the one that ended last; None if it is not known any more."""
        live = self._telemetry.live.get(request_id)
        if live is not None:
            return live
        recent = reversed(self._telemetry.recent)
        return next((timeline for timeline in recent if timeline.request_id == request_id), None)

    def of(self, timeline: RequestTimeline) -> RequestView:
        """One request."""
        waits = timeline.phase in (Phase.QUEUED, Phase.PREFILL)
        standing = self._standing(timeline.request_id) if waits else None
        return request_view(timeline, standing, time.monotonic(), self._telemetry.step_seconds)
