"""Responses that were asked to be kept, in memory, bounded by number, bytes and age.

Whoever has most gives way first, oldest first, so nobody can push out another's. Deleting or dropping a response makes
its id unknown; what later responses continue from stays with them as long as they do.
"""

import time
from collections.abc import Callable, Iterator
from itertools import takewhile

from limelight.errors import InvalidRequest, RequestCancelled, ResponseNotFound
from limelight.http.frame_log import FrameLog
from limelight.http.protocol.responses.items import REFERENCE, Item
from limelight.http.protocol.responses.objects import ResponseObject
from limelight.http.responses.run import ResponseRun
from limelight.http.responses.stored import StoredResponse
from limelight.quoting import quoted


class _Shelf:
    """What one owner has, oldest first.

    Attributes:
        items: which response an item belongs to, by the item's id.
        num_bytes: what all of it takes, what is only held by later responses included.
    """

    __slots__ = ("items", "num_bytes", "responses")

    def __init__(self) -> None:
        self.responses: dict[str, StoredResponse] = {}
        self.items: dict[str | None, StoredResponse] = {}
        self.num_bytes = 0


class ResponseStore:
    """All stored responses of one application.

    Args:
        max_responses: how many are kept; 0 keeps none.
        max_bytes: how many bytes they may take together, events and what they continue included.
        max_age_seconds: how long each is kept.
        clock: seconds.

    Attributes:
        num_bytes: what all responses take.
    """

    def __init__(
        self,
        max_responses: int,
        max_bytes: int,
        max_age_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}
        self.num_bytes = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._max_responses > 0

    def __len__(self) -> int:
        return sum(len(shelf.responses) for shelf in self._shelves.values())

    def add(
        self,
        owner: str,
        response: ResponseObject,
        items: tuple[Item, ...],
        parent: StoredResponse | None,
        run: ResponseRun | None = None,
    ) -> StoredResponse:
        """Keep a response, and let go of what is too much then.

        Args:
            items: the input.
            parent: the response that it continues.
            run: what it is made by, if it has not ended.
        """
        stored = StoredResponse(owner, response, items, parent, self._clock(), run)
        shelf = self._shelves.setdefault(owner, _Shelf())
        shelf.responses[stored.id] = stored
        shelf.items.update(dict.fromkeys(stored.item_ids, stored))
        self._hold(stored)
        self.shrink()
        return stored

    def end(self, stored: StoredResponse, response: ResponseObject) -> None:
        """It has ended as `response`; it may have been deleted before."""
        num_bytes = stored.num_bytes
        stored.end(response)
        if stored.num_holders:
            shelf = self._shelves[stored.owner]
            shelf.items.update(dict.fromkeys(stored.item_ids, stored))
            self._count(stored, stored.num_bytes - num_bytes)
            self.shrink()

    def resize(self, stored: StoredResponse, num_bytes: int) -> None:
        """Its events take `num_bytes` more, or less."""
        if stored.num_holders:
            self._count(stored, num_bytes)
            if num_bytes > 0 and self.num_bytes > self._max_bytes:
                self.shrink()

    def get(self, owner: str, response_id: str, param: str | None = None) -> StoredResponse:
        """The response with this id.

        Raises:
            ResponseNotFound: there is none, or it is not this owner's.
        """
        self._expire()
        shelf = self._shelves.get(owner)
        stored = shelf.responses.get(response_id) if shelf else None
        if stored is None:
            advice = (
                f"the newest {self._max_responses} are kept in memory for {self._max_age_seconds:g} seconds, if there "
                "is room; send the whole conversation as input instead"
                if self.enabled
                else "this server keeps none; send the whole conversation as input instead"
            )
            raise ResponseNotFound(f"No response {quoted(response_id)} is stored: {advice}", param=param)
        return stored

    def delete(self, owner: str, response_id: str) -> StoredResponse:
        """Forget the response with this id, and abort it if it is running.

        Raises:
            ResponseNotFound: as `get`.
        """
        stored = self.get(owner, response_id)
        self._remove(stored)
        return stored

    def discard(self, stored: StoredResponse) -> None:
        """As `delete`; nothing happens if it has gone already."""
        shelf = self._shelves.get(stored.owner)
        if shelf is not None and shelf.responses.get(stored.id) is stored:
            self._remove(stored)

    def resolve(self, owner: str, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """`items` with those that are meant in the place of references.

        Raises:
            InvalidRequest: a reference to an item that is in no response of this owner; `param` names it.
        """
        return tuple(
            self._meant(owner, item.id or "", f"input[{index}].id") if item.type == REFERENCE else item
            for index, item in enumerate(items)
        )

    def shrink(self) -> None:
        """Let go of what is too old or too much. What is running stays, but may lose its oldest events."""
        self._expire()
        while len(self) > self._max_responses and (shelf := self._heaviest(lambda shelf: len(shelf.responses))):
            self._remove(next(_ended(shelf)))
        while self.num_bytes > self._max_bytes and (shelf := self._heaviest(lambda shelf: shelf.num_bytes)):
            self._remove(next(_ended(shelf)))
        if self.num_bytes > self._max_bytes and (logs := self._logs()):
            largest = max(logs, key=lambda log: log.num_bytes)
            largest.drop_oldest(largest.num_bytes // 8)

    def _logs(self) -> list[FrameLog]:
        stored = (stored for shelf in self._shelves.values() for stored in shelf.responses.values())
        return [one.recording.log for one in stored if one.recording is not None]

    def _meant(self, owner: str, item_id: str, where: str) -> Item:
        self._expire()
        shelf = self._shelves.get(owner)
        stored = shelf.items.get(item_id) if shelf else None
        if stored is None or stored.running:
            raise InvalidRequest(
                f"{where} is {quoted(item_id)}, which no stored response has among its items; send the item itself",
                param=where,
            )
        return next(item for item in stored.items() if item.id == item_id)

    def _heaviest(self, weight: Callable[[_Shelf], int]) -> _Shelf | None:
        """The shelf with most on it, of those that can give something away."""
        return max((shelf for shelf in self._shelves.values() if any(_ended(shelf))), key=weight, default=None)

    def _expire(self) -> None:
        oldest = self._clock() - self._max_age_seconds
        for shelf in list(self._shelves.values()):
            for stored in list(takewhile(lambda stored: stored.created_at < oldest, _ended(shelf))):
                self._remove(stored)

    def _remove(self, stored: StoredResponse) -> None:
        if stored.recording is not None:
            stored.recording.log.drop_all()
            stored.recording.cancel(RequestCancelled("The response was deleted"))
        shelf = self._shelves[stored.owner]
        del shelf.responses[stored.id]
        for item_id in stored.item_ids:
            if shelf.items.get(item_id) is stored:
                del shelf.items[item_id]
        self._release(stored)
        if not shelf.responses:
            del self._shelves[stored.owner]

    def _count(self, stored: StoredResponse, num_bytes: int) -> None:
        self._shelves[stored.owner].num_bytes += num_bytes
        self.num_bytes += num_bytes

    def _hold(self, stored: StoredResponse) -> None:
        """One more holds it; the first one makes it count, and what it continues too."""
        holding: StoredResponse | None = stored
        while holding is not None:
            holding.num_holders += 1
            if holding.num_holders > 1:
                return
            self._count(holding, holding.num_bytes)
            holding = holding.parent

    def _release(self, stored: StoredResponse) -> None:
        """One fewer holds it; without any it does not count any more."""
        released: StoredResponse | None = stored
        while released is not None:
            released.num_holders -= 1
            if released.num_holders:
                return
            self._count(released, -released.num_bytes)
            released = released.parent


def _ended(shelf: _Shelf) -> Iterator[StoredResponse]:
    return (stored for stored in shelf.responses.values() if not stored.running)
