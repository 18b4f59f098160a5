"""The spans of one request, derived from its timeline: what traces, waterfalls and exports show alike."""

from dataclasses import dataclass, field
from typing import NamedTuple

AttributeValue = str | bool | int | float | tuple[str, ...]


class SpanEvent(NamedTuple):
    """Something that happened within a span, at a monotonic time."""

    name: str
    at: float
    attributes: dict[str, AttributeValue]


@dataclass(slots=True)
class SpanRecord:
    """One span.

    Attributes:
        key: unique in its request: "request", "queue", "choice 1/decode".
        parent: key of the span above it; None for the request's own.
        start, end: monotonic seconds.
        error: why its status is an error; None: it is not.
    """

    key: str
    name: str
    parent: str | None
    start: float
    end: float
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    error: str | None = None
