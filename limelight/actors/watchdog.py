"""Looks once a second whether what should move still moves: the step in hand, the scheduler, the calls on threads.

What stands still is named in the log, once, and in `reasons` for as long as it does. A thread cannot be stopped from
outside. So a step that never ends is the end of the engine: its requests fail at once, and the process that holds the
thread has to be replaced.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping

import anyio

from limelight.actors.scheduling.planner import Planner
from limelight.actors.step_ledger import StepLedger
from limelight.actors.worker_thread import BusyThread, WorkerThreads
from limelight.errors import EngineFailed
from limelight.telemetry.counters import EngineCounters

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SLOW_STEP_SECONDS = 10.0
SLOW_RATIO = 10.0
"""A step is suspicious when it takes so many times what the longest took, and `SLOW_STEP_SECONDS`."""
SLOW_FIRST_STEP_SECONDS = 120.0
"""The first steps of a process may compile kernels."""
FEW_STEPS = 8
IDLE_SECONDS = 10.0
"""For so long no step is planned although there is work."""
CALL_SECONDS = 30.0
"""A call on a thread that takes longer is named."""
FAILURES_IN_A_ROW = 3
FAILURE_SECONDS = 30.0
"""After so many failed steps in a row no work should come, for so long: then another request may try."""
MAX_NAMED_REQUESTS = 8


class Watchdog:
    """Watches one engine, on its event loop.

    Args:
        threads: by what they do; when all threads of one are stuck, new requests would be, too.
        runner_threads: those whose stacks tell where a step is stuck.
        step_timeout_seconds: as in `EngineConfig`.
        died: told when a step will never end.

    Attributes:
        reasons: what stands still, in words.
    """

    def __init__(
        self,
        planner: Planner,
        ledger: StepLedger,
        counters: EngineCounters,
        threads: Mapping[str, WorkerThreads],
        runner_threads: Callable[[], list[BusyThread]],
        step_timeout_seconds: float,
        died: Callable[[EngineFailed], None],
    ) -> None:
        self.reasons: tuple[str, ...] = ()
        self._planner = planner
        self._ledger = ledger
        self._counters = counters
        self._threads = threads
        self._runner_threads = runner_threads
        self._step_timeout_seconds = step_timeout_seconds
        self._died = died
        self._named_step = -1
        self._overdue_step = -1
        self._named_calls: set[BusyThread] = set()
        self._idle: tuple[int, float] | None = None  # number of steps so far, and since when there is work and no step

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Form `reasons` anew.

        Args:
            now: monotonic seconds.
        """
        found = (self._step(now), self._scheduler(now), self._failures(now), *self._calls(now))
        self.reasons = tuple(reason for reason in found if reason is not None)

    def _step(self, now: float) -> str | None:
        oldest = self._ledger.oldest_step
        if oldest is None:
            return None
        number, since = oldest
        seconds, usual = now - since, SLOW_RATIO * self._ledger.longest_step_seconds
        slow = SLOW_STEP_SECONDS if self._ledger.num_steps >= FEW_STEPS else SLOW_FIRST_STEP_SECONDS
        limit = self._step_timeout_seconds
        suspicious = seconds > max(slow, usual) or (limit and seconds > limit / 2)
        if not suspicious:
            return None
        chunks = self._planner.chunks(number)
        num_decodes = [chunk.num_tokens for chunk in chunks].count(1)
        num_prompt_tokens = sum([chunk.num_tokens for chunk in chunks]) - num_decodes
        what = f"step {number} ({num_decodes} decodes, {num_prompt_tokens} prompt tokens)"
        if number != self._named_step:
            self._named_step = number
            self._counters.num_stuck_steps += 1
            ids = list(dict.fromkeys(chunk.sequence.request_id for chunk in chunks))
            more = f" and {len(ids) - MAX_NAMED_REQUESTS} more" if len(ids) > MAX_NAMED_REQUESTS else ""
            logger.warning(
                "%s has been running for %.0f s, the longest before it took %.1f s; requests %s%s%s",
                what,
                seconds,
                self._ledger.longest_step_seconds,
                ", ".join(ids[:MAX_NAMED_REQUESTS]),
                more,
                _stacks(self._runner_threads()),
            )
        if limit and seconds > max(limit, usual):
            # A second look: its result may be on its way while the loop itself stood still.
            if number == self._overdue_step:
                self._died(
                    EngineFailed(
                        f"{what} has not ended for {seconds:.0f} s, step_timeout_seconds is {limit:g}; the thread that "
                        "runs it cannot be stopped, so the process must be replaced"
                    )
                )
            self._overdue_step = number
        return f"{what} has been running for {seconds:.0f} s"

    def _scheduler(self, now: float) -> str | None:
        if self._planner.num_in_flight or not self._planner.has_work:
            self._idle = None
            return None
        if self._idle is None or self._idle[0] != self._ledger.num_steps:
            self._idle = (self._ledger.num_steps, now)
        seconds = now - self._idle[1]
        if seconds < IDLE_SECONDS:
            return None
        return f"there is work, and no step has been planned for {seconds:.0f} s"

    def _failures(self, now: float) -> str | None:
        number = self._ledger.num_failures_in_a_row
        if number < FAILURES_IN_A_ROW or now - self._ledger.last_ended_at > FAILURE_SECONDS:
            return None
        return f"the last {number} steps have failed"

    def _calls(self, now: float) -> Iterable[str]:
        stuck_calls: set[BusyThread] = set()
        for what, threads in self._threads.items():
            stuck = [call for call in threads.busy() if now - call.since > CALL_SECONDS]
            stuck_calls.update(stuck)
            if len(stuck) == threads.count:
                yield f"{what}: all {threads.count} threads have been busy with one call each for {CALL_SECONDS:.0f} s"
        for call in stuck_calls - self._named_calls:
            self._counters.num_stuck_calls += 1
            seconds = now - call.since
            logger.warning("a call on thread %s has been running for %.0f s%s", call.name, seconds, _stacks([call]))
        self._named_calls = stuck_calls


def _stacks(calls: Iterable[BusyThread]) -> str:
    """Where threads are just now; a frame names a file, a line and its code, never a value."""
    frames = sys._current_frames()  # noqa: SLF001 - documented, for debugging
    stacks = [
        f"\n{call.name}:\n{''.join(traceback.format_stack(frames[call.ident]))}"
        for call in calls
        if call.ident in frames
    ]
    return "".join(stacks).rstrip()
