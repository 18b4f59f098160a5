"""Who has used how much: totals by model and principal."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from limelight.telemetry.instruments import MAX_SERIES, OTHER
from limelight.telemetry.timeline import RequestTimeline


@dataclass(slots=True)
class Usage:
    """What requests have used.

    Attributes:
        num_requests: admitted.
        prompt_tokens, cached_tokens: of prompts that have begun to run, cached ones included, and those from the cache.
        output_tokens: as requests report them in their `usage`; those of live requests included.
        reasoning_tokens: those of them that were reasoning, known when a request ends.
        step_seconds: share of the time that steps took.
        page_seconds: integral over time of the KV pages held.
    """

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    step_seconds: float = 0.0
    page_seconds: float = 0.0

    def add(self, timeline: RequestTimeline) -> None:
        """What one request has used by now."""
        if timeline.scheduled_at is not None:
            self.prompt_tokens += timeline.prompt_tokens
            self.cached_tokens += timeline.cached_tokens
        self.output_tokens += timeline.output_tokens
        self.reasoning_tokens += timeline.reasoning_tokens if timeline.ended_at is not None else 0
        self.step_seconds += timeline.step_seconds
        self.page_seconds += sum([choice.page_seconds for choice in timeline.choices])


class UsageTotals:
    """Totals of admitted requests.

    A request is counted under the names that it was admitted with if they have a place by then, else as `OTHER`: so no
    total ever falls, also while live requests are added to it at each look. The step in which a request ends is added
    when it is through.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str], Usage] = {}
        self._settling: deque[tuple[RequestTimeline, float]] = (
            deque()
        )  # with the seconds of steps counted at their ends

    def admitted(self, timeline: RequestTimeline) -> None:
        """A request will use something."""
        names = (timeline.model, timeline.owner)
        if names not in self._ended and len(self._ended) < MAX_SERIES:
            self._ended[names] = Usage()
        self._of(self._ended, timeline).num_requests += 1

    def ended(self, timeline: RequestTimeline) -> None:
        """It has used it, but for its share of steps that are in flight."""
        self._of(self._ended, timeline).add(timeline)
        if timeline.scheduled_at is not None:
            self._settling.append((timeline, timeline.step_seconds))

    def step_ended(self, planned_at: float) -> None:
        """All steps up to the one that was planned then are through: they carried who had ended, no later one will."""
        while self._settling:
            timeline, counted = self._settling[0]
            assert timeline.ended_at is not None, "it has ended"
            if timeline.ended_at > planned_at:
                return
            self._settling.popleft()
            self._of(self._ended, timeline).step_seconds += timeline.step_seconds - counted

    def now(self, live: Iterable[RequestTimeline]) -> dict[tuple[str, str], Usage]:
        """By model and principal: what has been used, by `live` requests, too."""
        totals = {names: replace(usage) for names, usage in list(self._ended.items())}
        for timeline in live:
            self._of(totals, timeline).add(timeline)
        return totals

    def _of(self, totals: dict[tuple[str, str], Usage], timeline: RequestTimeline) -> Usage:
        names = (timeline.model, timeline.owner)
        if names not in self._ended:
            names = (OTHER, OTHER)
        return totals.setdefault(names, Usage())
