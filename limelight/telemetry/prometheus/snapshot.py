"""What one scrape reads: references to what an engine counts, and its state at this moment."""

from dataclasses import dataclass

from limelight.config import EngineConfig
from limelight.telemetry.counters import EngineCounters
from limelight.telemetry.heartbeat import Heartbeat
from limelight.telemetry.http_counters import HttpCounters
from limelight.telemetry.share_totals import ShareUsage
from limelight.telemetry.statistics import EngineStatistics
from limelight.telemetry.timeline import RequestTimeline
from limelight.telemetry.usage_totals import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One engine as a scrape finds it, in whatever state.

    Attributes:
        model: the served name; the configured one before there is a model.
        state: of the engine; one of `states`.
        statistics: None while it is not up.
        usage: totals by model and principal.
        shares: totals by share.
        live: timelines of the live requests.
    """

    model: str
    state: str
    states: tuple[str, ...]
    config: EngineConfig
    statistics: EngineStatistics | None
    counters: EngineCounters
    http: HttpCounters
    heartbeat: Heartbeat
    usage: dict[tuple[str, str], Usage]
    shares: dict[str, ShareUsage]
    live: tuple[RequestTimeline, ...]
