"""A thread that notices when the event loop stands still, and says what holds it: no timer of the loop could."""

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator

from limelight.telemetry.counters import EngineCounters

logger = logging.getLogger(__name__)


class LoopWatch:
    """Watches the running event loop while it is entered.

    Args:
        seconds: without a beat; then the loop's stack is logged, once for each standstill.
        counters: its `num_loop_stalls` are counted.
    """

    def __init__(self, seconds: float, counters: EngineCounters) -> None:
        self._seconds = seconds
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beaten_at = time.monotonic()
        self._ended = threading.Event()

    def beat(self) -> None:
        """The loop turns."""
        self._beaten_at = time.monotonic()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the thread runs."""
        thread = threading.Thread(target=self._watch, name="limelight-loop-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        told_of: float | None = None  # the beat after which it stands still
        while not self._ended.wait(self._seconds / 2):
            beaten_at = self._beaten_at
            if told_of is not None and beaten_at != told_of:
                logger.warning("the event loop turns again, after %.1f s or less", beaten_at - told_of)
                told_of = None
            silent = time.monotonic() - beaten_at
            if told_of is None and silent > self._seconds:
                told_of = beaten_at
                logger.warning("the event loop has stood still for %.1f s%s", silent, self._where())
                self._counters.num_loop_stalls += 1

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - documented, for debugging
        if frame is None:
            return ""
        try:
            task = asyncio.current_task(self._loop)
        except RuntimeError:
            task = None
        name = "" if task is None else f", in task {task.get_name()}"
        return f"{name}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
