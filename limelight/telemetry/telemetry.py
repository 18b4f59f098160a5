"""What an engine observes of itself, from the first call to the last span: one object, owned by the engine.

Actors write into timelines and tell of steps; here that becomes spans, counters and the list of recent requests.
Reading costs the hot path nothing: whoever scrapes or looks does the work.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from limelight.config import EngineConfig
from limelight.errors import EngineNotRunning, LimelightError, Overloaded, RequestCancelled, RequestExpired
from limelight.generation import Delta, GenerationRequest
from limelight.telemetry.counters import EngineCounters
from limelight.telemetry.genai_metrics import GenAIMetrics
from limelight.telemetry.heartbeat import Heartbeat
from limelight.telemetry.http_counters import HttpCounters
from limelight.telemetry.request_log import log_request
from limelight.telemetry.step_records import StepRecord
from limelight.telemetry.timeline import Ending, RequestTimeline
from limelight.telemetry.timings import timings
from limelight.telemetry.tracing import Tracing, recorded_trace_id


class Telemetry:
    """Spans, counters and recent requests of one engine.

    Attributes:
        counters: totals and histograms.
        http: those of the HTTP side.
        heartbeat: how late the loop is, and the last minutes by the second.
        tracing: makes the spans.
        genai_metrics: the histograms of the GenAI conventions.
        live: timelines of the requests that have begun and not ended, by id.
        recent: those that have ended, oldest first, refused ones included.
        num_ended: all of them.
        step_seconds: during which at least one step was on the runner's threads, failed ones included.
    """

    def __init__(
        self, config: EngineConfig, tracing: Tracing, genai_metrics: GenAIMetrics, counters: EngineCounters
    ) -> None:
        self.counters = counters
        self.http = HttpCounters()
        self.heartbeat = Heartbeat()
        self.tracing = tracing
        self.genai_metrics = genai_metrics
        self.live: dict[str, RequestTimeline] = {}
        self.recent: deque[RequestTimeline] = deque(maxlen=config.recent_requests)
        self.num_ended = 0
        self.step_seconds = 0.0

    def begin(self, request: GenerationRequest, model: str) -> RequestTimeline:
        """A request has come; it has not been admitted yet. `end` follows in every case."""
        timeline = RequestTimeline(request, model, time.monotonic())
        timeline.steps_before = self.step_seconds
        self.tracing.begin(timeline, request)
        return timeline

    def admitted(self, timeline: RequestTimeline) -> None:
        """The engine has taken it."""
        timeline.admitted_at = time.monotonic()
        self.live[timeline.request_id] = timeline
        self.counters.request_admitted(timeline)

    def end(
        self, timeline: RequestTimeline, error: LimelightError | None, output: Callable[[], Sequence[Delta]] = tuple
    ) -> None:
        """It has ended, or was refused; called once.

        Args:
            output: gives what it has made, one delta per choice, for those who ask for content in their traces.
        """
        timeline.ended_at = time.monotonic()
        timeline.count_pages(timeline.ended_at)
        timeline.steps_after = self.step_seconds
        timeline.error = None if error is None else _without_traceback(error)
        timeline.ending = ending(error, admitted=timeline.admitted_at is not None)
        if timeline.admitted_at is not None:
            del self.live[timeline.request_id]
        self.recent.append(timeline)
        self.num_ended += 1
        model = self.counters.model_label(timeline)
        known = timings(timeline)
        self.counters.request_ended(timeline, known, model, recorded_trace_id(timeline))
        self.genai_metrics.request_ended(timeline, known, model)
        self.tracing.end(timeline, output)
        log_request(timeline)

    def step_ended(self, step: StepRecord, chunks: Sequence[Any]) -> None:
        """A step is through. `chunks`: the planner's, whose sequences lead to the timelines."""
        self.counters.step_ended(step)
        self.heartbeat.step_ended(step)
        self.tracing.step_ended(step, chunks, self.live)


def _without_traceback(error: LimelightError) -> LimelightError:
    """Frames, and errors behind this one, lead to the request with its prompt."""
    bare = error.again()
    bare.__cause__ = None
    return bare


def ending(error: LimelightError | None, *, admitted: bool) -> Ending:
    """How a request ended that has ended with `error`."""
    match error:
        case None:
            return Ending.COMPLETED
        case RequestExpired():
            return Ending.EXPIRED
        case RequestCancelled():
            return Ending.ABORTED
        case Overloaded():
            return Ending.REJECTED
        case EngineNotRunning() if not admitted:
            return Ending.REJECTED
    return Ending.INVALID if 400 <= error.status < 500 else Ending.FAILED
