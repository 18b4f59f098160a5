"""What became of one request: times, token counts, or the reason why it failed."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestResult:
    """One request. It has failed if `error` is set.

    Attributes:
        sent_seconds: when it was sent, counted from the start of the run.
        ttft_seconds: from then to the first token.
        latency_seconds: from then to the last one.
        gaps_seconds: between two events that bring tokens.
        is_estimated: the server told no usage: the prompt has the length that was asked for, and an event is a token.
    """

    sent_seconds: float = 0.0
    ttft_seconds: float = 0.0
    latency_seconds: float = 0.0
    gaps_seconds: list[float] = field(default_factory=list)
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    is_estimated: bool = False
    error: str | None = None

    def arrived(self, seconds: float) -> None:
        """An event has brought tokens, `seconds` after the request was sent."""
        if self.latency_seconds:
            self.gaps_seconds.append(seconds - self.latency_seconds)
        else:
            self.ttft_seconds = seconds
        self.latency_seconds = seconds

    @property
    def arrivals_seconds(self) -> list[float]:
        """When each event came, counted from the start of the run."""
        times = [self.sent_seconds + self.ttft_seconds]
        for gap in self.gaps_seconds:
            times.append(times[-1] + gap)
        return times
