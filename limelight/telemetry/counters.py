"""What an engine counts."""

from limelight.telemetry.instruments import Counter, Histogram
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.timeline import RequestTimeline

INTER_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10, 20, 40, 80)
"""Seconds; the buckets of `gen_ai.server.time_per_output_token`, and those that vLLM adds."""


class EngineCounters:
    """Totals and histograms since the engine was made.

    Attributes:
        requests: ended requests, by ending and reason.
        inter_token_seconds: between two tokens of a choice, as the scheduler sees them.
    """

    def __init__(self) -> None:
        self.requests = Counter(2)
        self.inter_token_seconds = Histogram(INTER_TOKEN_BOUNDS)

    def request_ended(self, timeline: RequestTimeline) -> None:
        """A request has ended, or was refused."""
        assert timeline.ending is not None, "it has ended"
        code = timeline.error.code if timeline.error is not None else None
        self.requests.add(1, timeline.ending, code or "none")

    def step_ended(self, step: StepRecord) -> None:
        """A step is through."""
