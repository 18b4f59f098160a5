"""Who has used how much: totals by model and principal."""

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
        for choice in timeline.choices:
            self.step_seconds += choice.step_seconds
            self.page_seconds += choice.page_seconds


class UsageTotals:
    """Totals of admitted requests.

    A request is counted under the names that it was admitted with if they have a place by then, else as `OTHER`: so no
    total ever falls, also while live requests are added to it at each look.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str], Usage] = {}

    def admitted(self, timeline: RequestTimeline) -> None:
        """A request will use something."""
        names = (timeline.model, timeline.owner)
        if names not in self._ended and len(self._ended) < MAX_SERIES:
            self._ended[names] = Usage()
        self._of(self._ended, timeline).num_requests += 1

    def ended(self, timeline: RequestTimeline) -> None:
        """It has used it."""
        self._of(self._ended, timeline).add(timeline)

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
