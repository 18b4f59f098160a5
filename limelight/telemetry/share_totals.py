"""What shares have used, waited for and been refused: totals by the name of the share."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from limelight.errors import ShareExceeded
from limelight.telemetry.instruments import MAX_SERIES, OTHER, Counter
from limelight.telemetry.timeline import RequestTimeline

LIMITS = ("requests", "tokens")
"""Of a share: its live requests, refused at admission, and its quota, which the scheduler refuses."""


@dataclass(slots=True)
class ShareUsage:
    """What requests of one share have used.

    Attributes:
        num_live: requests that have been admitted and have not ended.
        tokens: as quotas count them: of prompts that have begun to run, cached ones not counted, and drawn ones.
        wait_seconds: that requests waited because it was the turn of another share.
    """

    num_live: int = 0
    tokens: int = 0
    wait_seconds: float = 0.0

    def add(self, timeline: RequestTimeline, at: float) -> None:
        """What one request has used by `at`."""
        if timeline.scheduled_at is not None:
            self.tokens += timeline.prompt_tokens - timeline.cached_tokens
        self.tokens += timeline.output_tokens
        self.wait_seconds += timeline.share_wait(at)


class ShareTotals:
    """The first `MAX_SERIES` shares have totals of their own, further ones are counted together as `OTHER`.

    Attributes:
        refusals: requests that a limit of their share refused, by share and which of `LIMITS`.
    """

    def __init__(self) -> None:
        self._ended: dict[str, ShareUsage] = {}
        self.refusals = Counter(2, 2 * MAX_SERIES)

    def admitted(self, timeline: RequestTimeline) -> None:
        """A request has come."""
        if timeline.share not in self._ended and len(self._ended) < MAX_SERIES:
            self._ended[timeline.share] = ShareUsage()

    def ended(self, timeline: RequestTimeline) -> None:
        """A request has ended, or was refused."""
        assert timeline.ended_at is not None, "it has ended"
        if isinstance(timeline.error, ShareExceeded):
            self.refusals.add(1, timeline.share, LIMITS[timeline.admitted_at is not None])
        if timeline.admitted_at is not None:
            self._ended.setdefault(self.label(timeline.share), ShareUsage()).add(timeline, timeline.ended_at)

    def label(self, share: str) -> str:
        """Under which name a share is counted."""
        return share if share in self._ended else OTHER

    def now(self, live: Iterable[RequestTimeline], at: float) -> dict[str, ShareUsage]:
        """By share: what has been used by `at`, by `live` requests, too."""
        totals = {name: replace(usage) for name, usage in list(self._ended.items())}
        for timeline in live:
            usage = totals.setdefault(self.label(timeline.share), ShareUsage())
            usage.num_live += 1
            usage.add(timeline, at)
        return totals
