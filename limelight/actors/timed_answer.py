"""A job on shared threads whose request is answered in time, also if the thread never comes back."""

import asyncio
import time
from collections.abc import Callable

from limelight.actors.channel import Sender
from limelight.actors.messages import Compiled, Encoded, Failed, ToRequest
from limelight.actors.worker_thread import WorkerThreads, post
from limelight.errors import LimelightError

Answer = Encoded | Compiled | Failed

LOOK_SECONDS = 1.0
"""Between two looks, so that the prompt of a request that has left is not kept while all threads are busy."""


class TimedAnswer:
    """Answers once: with what `work` returns, or with `too_slow` or `all_stuck` when that takes too long.

    Args:
        work: called on one of `threads`, unless nobody waits for the answer any more; lets no exception out.
        seconds: that `work` may take from when it has a thread.
        too_slow: why it failed then.
        all_stuck: why it failed if it has no thread because each has been at one call for longer than that.
        pending: it is in there until it has answered.
    """

    def __init__(
        self,
        work: Callable[[], Answer],
        reply_to: Sender[ToRequest],
        threads: WorkerThreads,
        seconds: float,
        too_slow: Callable[[], LimelightError],
        all_stuck: Callable[[], LimelightError],
        pending: "set[TimedAnswer]",
    ) -> None:
        self._work: Callable[[], Answer] | None = work
        self._reply_to = reply_to
        self._threads = threads
        self._seconds = seconds
        self._too_slow = too_slow
        self._all_stuck = all_stuck
        self._loop = asyncio.get_running_loop()
        self._began_at: float | None = None
        self._answered = False
        self._pending = pending
        pending.add(self)
        self._limit = self._look_after(seconds)
        threads.put(self._run)

    def drop(self) -> None:
        """Answer no more."""
        self._finish(None)

    def _run(self) -> None:
        """On a thread."""
        work = self._work
        if work is None or self._reply_to.closed:
            post(self._loop, self._finish, None)
            return
        self._began_at = time.monotonic()
        post(self._loop, self._finish, work())

    def _look_after(self, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_later(min(seconds, LOOK_SECONDS), self._look)

    def _look(self) -> None:
        now = time.monotonic()
        if self._reply_to.closed:
            self._finish(None)
        elif self._began_at is None:
            busy = [call for call in self._threads.busy() if now - call.since >= self._seconds]
            if len(busy) < self._threads.count:  # there is a queue, and it moves
                self._limit = self._look_after(self._seconds)
            else:
                self._finish(Failed(self._all_stuck()))
        elif (left := self._began_at + self._seconds - now) > 0:
            self._limit = self._look_after(left)
        else:
            self._finish(Failed(self._too_slow()))

    def _finish(self, answer: Answer | None) -> None:
        self._work = None
        self._limit.cancel()
        self._pending.discard(self)
        if not self._answered and answer is not None:
            self._reply_to.tell(answer)
        self._answered = True
