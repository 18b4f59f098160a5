"""One step's masks: its rows on several threads, told together, and in time."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from limelight.actors.messages import ConstraintFailed, MakeMasks, MaskRow, Masks
from limelight.actors.worker_thread import WorkerThreads, post
from limelight.errors import InvalidRequest, LimelightError
from limelight.models.constraints.constraint import failure
from limelight.telemetry.log_fields import of_request, without_message

logger = logging.getLogger(__name__)

ROWS_PER_THREAD = 4
"""Fewer rows than this are not worth waking another thread."""

BUSY_MACHINE_RATIO = 10.0
"""So many times its limit a row may take where something else has the processor; everybody's step waits for it."""
SPENT_RATIO = 0.8
"""A row whose thread computed for so much of its limit has had it; the rest went into turns of other threads."""

Tell = Callable[[list[ConstraintFailed], Masks], None]


class MaskMaking:
    """One `MakeMasks`. `tell` is called once, on the loop, with the rows that failed and the masks of the others.

    Args:
        max_seconds: a row fails that is not made after its thread has computed for so long, or whose turn has not come
            after twice that.
    """

    def __init__(
        self,
        message: MakeMasks,
        threads: WorkerThreads,
        loop: asyncio.AbstractEventLoop,
        max_seconds: float,
        tell: Tell,
    ) -> None:
        self._number = message.number
        self._threads = threads
        self._loop = loop
        self._max_seconds = max_seconds
        self._tell = tell
        self._lock = threading.Lock()  # for the next three
        self._waiting = deque(message.rows)
        self._begun: dict[int, Callable[[], float]] = {}  # chunk -> seconds that its thread has computed since
        self._began_at = loop.time()
        self._made: dict[int, bytes | LimelightError] = {}
        self._rows = {row.chunk: row for row in message.rows}
        self._limit: asyncio.TimerHandle | None = None
        self._told = False

    def start(self) -> None:
        """Begin with the rows that wait."""
        self._began_at = self._loop.time()
        self._limit = self._loop.call_later(self._max_seconds, self._look)
        for _ in range(min(self._threads.count, -(-len(self._waiting) // ROWS_PER_THREAD))):
            self._threads.put(self._make)

    def _make(self) -> None:
        """On a thread for masks: rows, as long as there are any."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                row = self._waiting.popleft()
                self._begun[row.chunk] = stop_watch()
            mask = _mask(row)
            with self._lock:
                self._made.setdefault(row.chunk, mask)
                is_last = len(self._made) == len(self._rows)
            if is_last:
                post(self._loop, self._finish)

    def _look(self) -> None:
        """Who has had its time fails, and the others get threads again; else there will be another look."""
        seconds = self._loop.time() - self._began_at
        with self._lock:
            begun = self._begun.keys() - self._made.keys()
            late = {
                chunk
                for chunk in begun
                if seconds >= BUSY_MACHINE_RATIO * self._max_seconds
                or self._begun[chunk]() >= SPENT_RATIO * self._max_seconds
            }
            if not begun and seconds >= 2 * self._max_seconds:  # all threads are busy with other steps
                late = {row.chunk for row in self._waiting}
                self._waiting.clear()
        if late:
            self._give_up(late)
        else:
            self._limit = self._loop.call_later(self._max_seconds / 4, self._look)

    def _give_up(self, late: set[int]) -> None:
        """These rows fail."""
        error = InvalidRequest(
            f"the mask of the next token takes longer than {self._max_seconds:g} s; make structured_outputs simpler",
            param="structured_outputs",
        )
        with self._lock:
            late -= self._made.keys()
            self._made.update(dict.fromkeys(late, error))
            is_last, waits = len(self._made) == len(self._rows), bool(self._waiting)
        if is_last:
            self._finish()
        elif waits:
            self.start()
        else:
            self._limit = self._loop.call_later(self._max_seconds / 4, self._look)

    def _finish(self) -> None:
        if self._told:
            return
        self._told = True
        if self._limit is not None:
            self._limit.cancel()
        masks = {chunk: mask for chunk, mask in self._made.items() if isinstance(mask, bytes)}
        failures = [
            ConstraintFailed(self._rows[chunk].request_id, mask)
            for chunk, mask in self._made.items()
            if isinstance(mask, LimelightError)
        ]
        self._tell(failures, Masks(self._number, masks))


def stop_watch() -> Callable[[], float]:
    """Seconds that this thread has computed since now, to be read on any thread; of the clock, where it has none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        began = time.monotonic()
        return lambda: time.monotonic() - began
    clock = time.pthread_getcpuclockid(threading.get_ident())
    began = time.clock_gettime(clock)
    return lambda: time.clock_gettime(clock) - began


def _mask(row: MaskRow) -> bytes | LimelightError:
    try:
        row.constraint.advance(row.token_ids)
        return row.constraint.mask()
    except LimelightError as error:
        return error
    except BaseException as error:  # a bug, or a panic in native code, fails its own request only
        logger.exception(
            "request %s: no mask can be made",
            row.request_id,
            exc_info=without_message(error),
            extra=of_request(row.request_id),
        )
        return failure(error)
