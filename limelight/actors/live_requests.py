"""The table of live requests: who is admitted, who is told when the engine fails, and when nobody is left."""

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable

from anyio.abc import TaskGroup

from limelight.actors.request import RequestActor
from limelight.errors import EngineFailed, InvalidRequest, LimelightError, Overloaded, ShareExceeded
from limelight.generation import GenerationRequest
from limelight.quoting import quoted


class LiveRequests:
    """Request actors from admission to their end, each a task of `group`.

    Args:
        limit: live requests; one more is refused.
        group: the engine's task group.
        died: told when an actor raises, which is a bug of ours that no other request may survive unnoticed.
        ended: told of each actor that has ended, after it has told the scheduler.
        seconds_until_free: until one of an owner's, or of all for None, may be expected to end; 0 if nobody knows.
    """

    def __init__(
        self,
        limit: int,
        group: TaskGroup,
        died: Callable[[EngineFailed], None],
        ended: Callable[[RequestActor], None],
        seconds_until_free: Callable[[str | None], float],
    ) -> None:
        self._limit = limit
        self._group = group
        self._died = died
        self._ended = ended
        self._seconds_until_free = seconds_until_free
        self._actors: dict[str, RequestActor] = {}
        self._num_of_owner: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._actors)

    def num_of_owner(self, owner: str) -> int:
        """Those of one principal."""
        return self._num_of_owner[owner]

    def check(self, request: GenerationRequest) -> None:
        """Whether a request could be added now.

        Raises:
            ShareExceeded: its owner has as many as it may have.
            Overloaded: the limit is reached.
            InvalidRequest: the id is in use.
        """
        limit, has = request.max_owner_requests, self._num_of_owner[request.owner]
        if limit is not None and has >= limit:
            raise ShareExceeded(
                f"{quoted(request.owner)} has {has} live requests and may have {limit}; try again when one has ended",
                retry_after_seconds=self._seconds_until_free(request.owner) or 1.0,
            )
        if len(self._actors) >= self._limit:
            raise Overloaded(
                f"{len(self._actors)} requests are live, the limit is {self._limit}; try again later",
                retry_after_seconds=self._seconds_until_free(None) or 1.0,
            )
        if request.request_id in self._actors:
            raise InvalidRequest(
                f"request id {quoted(request.request_id)} is in use; choose another", param="request_id"
            )

    def add(self, actor: RequestActor) -> None:
        """Start `actor` and keep it until it ends; `check` comes first."""
        self._actors[actor.request.request_id] = actor
        self._num_of_owner[actor.request.owner] += 1
        # An empty context: the task must not keep the caller's context variables (spans, sessions) alive.
        contextvars.Context().run(self._group.start_soon, self._run, actor)

    def abort(self, request_id: str, reason: LimelightError) -> bool:
        """End a request and tell its subscribers; returns whether it was still running."""
        actor = self._actors.get(request_id)
        if actor is None or actor.log.ended:
            return False
        actor.fail(reason)
        return True

    def fail_all(self, error: LimelightError) -> None:
        """Tell every subscriber of every request at once."""
        for actor in list(self._actors.values()):
            actor.fail(error)

    async def wait_until_empty(self) -> None:
        """Until no request is live."""
        while self._actors:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """End those that are left when the group has ended: cancelled before their tasks had run for the first time."""
        for actor in list(self._actors.values()):
            self._remove(actor)

    async def _run(self, actor: RequestActor) -> None:
        try:
            await actor.run()
        except Exception as error:  # noqa: BLE001 - where an actor is watched
            failure = EngineFailed(f"request {actor.request.request_id} broke: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._died(failure)
        finally:
            self._remove(actor)

    def _remove(self, actor: RequestActor) -> None:
        del self._actors[actor.request.request_id]
        owner = actor.request.owner
        self._num_of_owner[owner] -= 1
        if not self._num_of_owner[owner]:
            del self._num_of_owner[owner]
        self._ended(actor)
        self._changed.set()
