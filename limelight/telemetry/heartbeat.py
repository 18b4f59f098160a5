"""How late the event loop is, and what the engine was busy with in each of the last seconds."""

import time
from collections import deque
from collections.abc import Callable

import anyio
import msgspec

from limelight.telemetry.buckets import LAG_SECONDS
from limelight.telemetry.instruments import Histogram
from limelight.telemetry.statistics import EngineStatistics
from limelight.telemetry.step_records import StepRecord

BEATS_PER_SECOND = 10
NUM_SAMPLES = 600


class Sample(msgspec.Struct, frozen=True):
    """One second of an engine.

    Attributes:
        at: Unix seconds of its end; what is not said to be of the whole second is of this moment.
        num_running, num_waiting: sequences with and without a seat.
        num_tokens, num_steps, step_seconds, longest_step_seconds: of the steps that ended in this second.
        lag_seconds: the most that a timer was late by within it.
    """

    at: float
    num_running: int
    num_waiting: int
    num_free_pages: int
    num_cached_pages: int
    num_tokens: int
    num_steps: int
    step_seconds: float
    longest_step_seconds: float
    lag_seconds: float


class Heartbeat:
    """Beats while the engine runs: ten timers a second, and a sample after the last of them.

    Attributes:
        lag_seconds: how late each timer was.
        on_beat: called at each beat.
        samples: of the last ten minutes, oldest first.
        num_samples: taken so far: whoever follows them sees by it that there is a new one.
    """

    def __init__(self) -> None:
        self.lag_seconds = Histogram(LAG_SECONDS)
        self.on_beat: Callable[[], None] | None = None
        self.samples: deque[Sample] = deque(maxlen=NUM_SAMPLES)
        self.num_samples = 0
        self._num_tokens = self._num_steps = 0
        self._step_seconds = self._longest_step_seconds = 0.0

    def step_ended(self, step: StepRecord) -> None:
        """A step is through."""
        self._num_steps += 1
        self._num_tokens += step.num_tokens
        self._step_seconds += step.busy_seconds
        self._longest_step_seconds = max(self._longest_step_seconds, step.busy_seconds)

    async def run(self, statistics: Callable[[], EngineStatistics]) -> None:
        """Beat until cancelled."""
        while True:
            longest = 0.0
            for _ in range(BEATS_PER_SECOND):
                due = time.monotonic() + 1 / BEATS_PER_SECOND
                await anyio.sleep(1 / BEATS_PER_SECOND)
                lag = max(time.monotonic() - due, 0.0)
                self.lag_seconds.observe(lag)
                longest = max(longest, lag)
                if self.on_beat is not None:
                    self.on_beat()
            self._take(statistics(), longest)

    def _take(self, now: EngineStatistics, lag_seconds: float) -> None:
        self.samples.append(
            Sample(
                at=time.time(),
                num_running=now.num_running,
                num_waiting=now.num_waiting,
                num_free_pages=now.num_free_pages,
                num_cached_pages=now.num_cached_pages,
                num_tokens=self._num_tokens,
                num_steps=self._num_steps,
                step_seconds=self._step_seconds,
                longest_step_seconds=self._longest_step_seconds,
                lag_seconds=lag_seconds,
            )
        )
        self.num_samples += 1
        self._num_tokens = self._num_steps = 0
        self._step_seconds = self._longest_step_seconds = 0.0
