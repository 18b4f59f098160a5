"""What the live view sends: numbers, names and codes, never content."""

from typing import Any

import msgspec

from limelight.engine import Engine
from limelight.errors import EngineFailed, EngineNotRunning
from limelight.telemetry.heartbeat import Sample
from limelight.telemetry.request_view import RequestView


class EngineNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The engine as a whole; `step_seconds` is what the requests' own sum to."""

    num_running: int
    num_waiting: int
    num_seats: int
    num_pages: int
    num_free_pages: int
    num_cached_pages: int
    num_preemptions: int
    num_steps: int
    step_seconds: float


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/requests`.

    Attributes:
        now: Unix seconds.
        engine: None: it does not run.
        data: live requests, oldest first.
        recent: ended ones, newest first.
    """

    object: str = "list"
    now: float
    engine: EngineNumbers | None
    data: list[RequestView]
    recent: list[RequestView]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the feed: the list without `recent`, and the engine's last second."""

    object: str = "list"
    now: float
    engine: EngineNumbers | None
    data: list[RequestView]
    sample: Sample | None


class History(msgspec.Struct, frozen=True):
    """The first event of the feed: the last minutes, oldest second first."""

    samples: list[Sample]


class SpanEventObject(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened within a span, in seconds since the request's arrival."""

    name: str
    at: float
    attributes: dict[str, Any]


class SpanObject(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request, in seconds since its arrival; `parent` is the key of the span above."""

    key: str
    name: str
    parent: str | None
    start: float
    end: float
    attributes: dict[str, Any]
    events: list[SpanEventObject]
    error: str | None


class RequestDetail(RequestView, frozen=True, kw_only=True):
    """`GET /v1/requests/{id}`: the view, and where its time went."""

    spans: list[SpanObject]


def engine_numbers(engine: Engine) -> EngineNumbers | None:
    """Those of `engine`; None if it does not run."""
    try:
        statistics = engine.statistics()
    except (EngineFailed, EngineNotRunning):
        return None
    return EngineNumbers(**{name: getattr(statistics, name) for name in EngineNumbers.__struct_fields__})
