"""`limelight serve` in a process that tells its processor time: the servers that `tracing_cost.py` compares.

    python -m benchmarks.observed_server [--bare] [--step-ms MS] -- OPTIONS OF limelight serve

For each line on standard input it answers with a line of JSON: processor time of the process and of the loop's thread.
It ends with its standard input.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest import mock

from benchmarks.loop import Device, timed_model
from limelight.actors.recorder import ScheduleRecorder
from limelight.actors.scheduling.step_costs import StepCosts
from limelight.cli import main as limelight
from limelight.errors import LimelightError
from limelight.generation import Delta, GenerationRequest
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import RequestTimeline


class BareLedger:
    """Stands in for a `StepLedger`, and writes nothing down."""

    num_steps = 0
    step_seconds = last_ended_at = longest_step_seconds = 0.0
    num_failures_in_a_row = 0
    failed_in_a_row: frozenset[str] = frozenset()
    oldest_step = None

    def __init__(self, telemetry: Telemetry, stall_seconds: float, recorded: ScheduleRecorder | None = None) -> None:
        self.step_costs = StepCosts()

    def _ignore(self, *told: Any) -> None:
        pass

    seated = unseats = planned = ended = completed = failed = drew = _ignore


class BareTelemetry(Telemetry):
    """Observes nothing. Timelines are made, since actors hold them, and kept nowhere."""

    def begin(self, request: GenerationRequest, model: str) -> RequestTimeline:
        """See `Telemetry`."""
        return RequestTimeline(request, model, 0.0)

    def admitted(self, timeline: RequestTimeline) -> None:
        """See `Telemetry`."""

    def end(
        self, timeline: RequestTimeline, error: LimelightError | None, output: Callable[[], Sequence[Delta]] = tuple
    ) -> None:
        """See `Telemetry`."""


def observe_nothing() -> None:
    """Take the bookkeeping out of every engine of this process."""
    replacements: dict[str, Any] = {
        "limelight.engine.Telemetry": BareTelemetry,
        "limelight.actor_system.StepLedger": BareLedger,
        "limelight.telemetry.timeline.Delivery.begin": lambda delivery: 0.0,
        "limelight.telemetry.timeline.Delivery.end": lambda delivery, began_at, num_bytes: None,
    }
    for name, replacement in replacements.items():
        mock.patch(name, replacement).start()


def tell(lines: Iterable[str], loop_thread: int) -> None:
    """Answer each line with the processor time so far, then end this process as a signal would."""
    loop_clock = time.pthread_getcpuclockid(loop_thread)
    for _ in lines:
        times = {"process_seconds": time.process_time(), "loop_seconds": time.clock_gettime(loop_clock)}
        print(json.dumps(times), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", action="store_true", help="without timelines, steps and counters")
    parser.add_argument("--step-ms", type=float, metavar="MS", help="a model that computes nothing for so long a step")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="of limelight serve, after --")
    options = parser.parse_args(arguments)
    if options.bare:
        observe_nothing()
    loader = None if options.step_ms is None else timed_model(Device(options.step_ms / 1000))
    threading.Thread(target=tell, args=(sys.stdin, threading.get_ident()), daemon=True).start()
    return limelight(["serve", "--port", "0", *options.serve], loader=loader)


if __name__ == "__main__":
    raise SystemExit(main())
