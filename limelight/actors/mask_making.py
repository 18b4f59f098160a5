"""One step's masks: its rows on several threads, told together, and in time."""

import asyncio
import logging
import threading
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

Tell = Callable[[list[ConstraintFailed], Masks], None]


class MaskMaking:
    """One `MakeMasks`. `tell` is called once, on the loop, with the rows that failed and the masks of the others.

    Args:
        max_seconds: a row that is not made in this time after its thread took it, or all threads were busy, fails.
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
        self._begun: set[int] = set()
        self._made: dict[int, bytes | LimelightError] = {}
        self._rows = {row.chunk: row for row in message.rows}
        self._limit: asyncio.TimerHandle | None = None
        self._told = False

    def start(self) -> None:
        """Begin with the rows that wait."""
        self._limit = self._loop.call_later(self._max_seconds, self._give_up)
        for _ in range(min(self._threads.count, -(-len(self._waiting) // ROWS_PER_THREAD))):
            self._threads.put(self._make)

    def _make(self) -> None:
        """On a thread for masks: rows, as long as there are any."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                row = self._waiting.popleft()
                self._begun.add(row.chunk)
            mask = _mask(row)
            with self._lock:
                self._made.setdefault(row.chunk, mask)
                is_last = len(self._made) == len(self._rows)
            if is_last:
                post(self._loop, self._finish)

    def _give_up(self) -> None:
        """The rows that have been begun and not made fail, and the others get threads again. If all threads are busy
        with other steps, nobody gets any.
        """
        error = InvalidRequest(
            f"the mask of the next token takes longer than {self._max_seconds:g} s; make structured_outputs simpler",
            param="structured_outputs",
        )
        with self._lock:
            late = self._begun - self._made.keys()
            if not late:
                late = {row.chunk for row in self._waiting}
                self._waiting.clear()
            self._made.update(dict.fromkeys(late, error))
            goes_on = bool(self._waiting)
        if goes_on:
            self.start()
        else:
            self._finish()

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
