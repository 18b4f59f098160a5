"""What a request has produced, read by any number of subscribers at their own pace.

The log is the only buffer between the engine and a client. A subscriber is a cursor, so a slow one costs no queue: what
nobody has read yet is merged, and the text itself is bounded by the context length.
"""

import asyncio
from collections.abc import Callable, Iterable

from limelight.errors import LimelightError, RequestCancelled
from limelight.generation import Completion, Delta, TokenLogprob, Usage

MIN_UNREAD_TO_MERGE = 64


class ChoiceRecord:
    """Builder that merges the deltas of one choice, in order."""

    __slots__ = ("_finish", "_index", "_logprobs", "_reasoning", "_text", "_token_ids", "_usage")

    def __init__(self, index: int) -> None:
        self._index = index
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._finish: Delta | None = None
        self._usage: Usage | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta of this choice."""
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        if delta.text:
            self._text.append(delta.text)
        self._token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self._finish = delta
        if delta.usage is not None:
            self._usage = delta.usage

    @property
    def empty(self) -> bool:
        """Whether nothing has been added that a reader could miss."""
        return not (self._reasoning or self._text or self._token_ids or self._finish)

    def delta(self) -> Delta:
        """Everything added, as one delta."""
        finish = self._finish
        return Delta(
            index=self._index,
            reasoning="".join(self._reasoning),
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            finish_reason=finish.finish_reason if finish else None,
            stop_reason=finish.stop_reason if finish else None,
            finish_details=finish.finish_details if finish else None,
            usage=self._usage,
        )

    def completion(self) -> Completion:
        """The whole choice; only once it has finished."""
        whole = self.delta()
        assert whole.finish_reason is not None, "the choice has finished"
        return Completion(
            index=whole.index,
            reasoning=whole.reasoning,
            text=whole.text,
            token_ids=whole.token_ids,
            logprobs=whole.logprobs,
            finish_reason=whole.finish_reason,
            stop_reason=whole.stop_reason,
            finish_details=whole.finish_details,
        )


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """One delta per choice, in the order in which the choices last occur, so that the request's last stays last."""
    records: dict[int, ChoiceRecord] = {}
    for delta in deltas:
        record = records.pop(delta.index, None) or ChoiceRecord(delta.index)
        record.add(delta)
        records[delta.index] = record
    return [record.delta() for record in records.values()]


class EventLog:
    """The events of one request. Written by its request actor alone.

    Args:
        num_choices: `n`.
        abandoned: called once, when the last subscriber leaves before the end.
    """

    def __init__(self, num_choices: int, abandoned: Callable[[], None]) -> None:
        self._records = [ChoiceRecord(index) for index in range(num_choices)]
        self._abandoned = abandoned
        self._subscriptions: set[Subscription] = set()
        self._unread: list[Delta] = []  # not yet read by the slowest subscriber
        self._first = 0  # event number of _unread[0]
        self._merge_at = MIN_UNREAD_TO_MERGE
        self.ended = False
        self.error: LimelightError | None = None

    def append(self, delta: Delta) -> None:
        """Add an event; nobody is waited for."""
        assert not self.ended, "nothing follows the end"
        self._records[delta.index].add(delta)
        self._unread.append(delta)
        if len(self._unread) >= self._merge_at:
            self._merge_unread()
        self._wake()

    def end(self, error: LimelightError | None = None) -> None:
        """Close the log, with an error or without. Only the first call counts."""
        if not self.ended:
            self.ended = True
            self.error = error
            self._wake()

    def subscribe(self) -> "Subscription":
        """A new reader, who starts with everything that has happened so far."""
        subscription = Subscription(self)
        if self._first > 0:
            subscription.catch_up = self.everything()
            subscription.cursor = self._first + len(self._unread)
        self._subscriptions.add(subscription)
        return subscription

    def everything(self) -> list[Delta]:
        """One delta per choice that has begun, the one that ends the request last."""
        deltas = [record.delta() for record in self._records if not record.empty]
        return sorted(deltas, key=lambda delta: delta.usage is not None)

    def completions(self) -> tuple[Completion, ...]:
        """All choices, whole; only after an end without error."""
        return tuple(record.completion() for record in self._records)

    def read_from(self, cursor: int) -> tuple[list[Delta], int]:
        """Events from `cursor` on, and the next cursor."""
        end = self._first + len(self._unread)
        return self._unread[cursor - self._first :], end

    def forget_read(self) -> None:
        """Drop the events that every subscriber has read; the records keep their content."""
        if len(self._subscriptions) == 1:  # the one that has just read everything
            self._first += len(self._unread)
            self._unread = []
            self._merge_at = MIN_UNREAD_TO_MERGE
            return
        slowest = min((subscription.cursor for subscription in self._subscriptions), default=0)
        if slowest > self._first:
            del self._unread[: slowest - self._first]
            self._first = slowest
            self._merge_at = MIN_UNREAD_TO_MERGE

    def leave(self, subscription: "Subscription") -> None:
        """Remove a reader; if it was the last one, the request has no purpose any more."""
        if subscription not in self._subscriptions:
            return
        self._subscriptions.remove(subscription)
        if not self._subscriptions and not self.ended:
            self._abandoned()

    def _merge_unread(self) -> None:
        """Merge what no subscriber has seen; grows geometrically, so that the whole costs linear time."""
        newest_cursor = max((subscription.cursor for subscription in self._subscriptions), default=self._first)
        seen = max(newest_cursor - self._first, 0)
        tail = merged(self._unread[seen:])
        # Cursors count events, so the merged tail must not end before any cursor; it starts at the newest one.
        self._unread[seen:] = tail
        num_tokens = sum(len(delta.token_ids) for delta in tail)
        self._merge_at = len(self._unread) + max(MIN_UNREAD_TO_MERGE, num_tokens // 16)

    def _wake(self) -> None:
        for subscription in self._subscriptions:
            subscription.wake()


class Subscription:
    """One reader's place in a log."""

    __slots__ = ("_closed", "_log", "_skips_news", "_waiter", "catch_up", "cursor")

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._closed = False
        self._skips_news = False
        self._waiter: asyncio.Future[None] | None = None
        self.catch_up: list[Delta] = []
        self.cursor = 0

    async def next_deltas(self) -> list[Delta]:
        """Wait for news and take all of it, merged to one delta per choice; empty at the end.

        Cancelling the wait loses nothing. After `close`, what had happened before can still be read.

        Raises:
            LimelightError: the request's error, after everything before it has been read.
            RequestCancelled: the subscription was closed before the end.
            RuntimeError: another task is waiting here.
        """
        while True:
            if news := self._news():
                return merged(news) if len(news) > 1 else news
            if self._log.ended:
                if self._log.error is not None:
                    raise self._log.error.again()
                return []
            if self._closed:
                raise RequestCancelled("the stream was left before its end; read it inside its `async with` block")
            if self._waiter is not None:
                raise RuntimeError("another task is waiting for this stream; a stream has one reader at a time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def wait_for_end(self) -> None:
        """Wait until the request has finished, however much there is to read.

        Raises:
            LimelightError, RequestCancelled, RuntimeError: as `next_deltas`.
        """
        self._skips_news = True
        try:
            while await self.next_deltas():
                pass
        finally:
            self._skips_news = False

    def wake(self) -> None:
        """There is news."""
        if self._skips_news and not (self._log.ended or self._closed):
            return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Leave. Idempotent, never waits."""
        if not self._closed:
            self.catch_up = self._news()
            self._closed = True
            self._log.leave(self)
            self.wake()

    def _news(self) -> list[Delta]:
        """Everything that has not been read."""
        news, self.catch_up = self.catch_up, []
        if not self._closed:
            unread, self.cursor = self._log.read_from(self.cursor)
            if unread:
                news += unread
                self._log.forget_read()
        return news
