"""Work that ends at once when its client goes away, whatever it waits for: a queue slot, a token, a full socket."""

from collections.abc import Awaitable, Callable

import anyio
from litestar.types import Receive

from limelight.errors import LimelightError


async def run_until_disconnect(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`; cancel it if `receive` reports a disconnect first. The body must have been read already.

    Raises:
        LimelightError: what `work` raised, as itself and not inside an exception group.
    """
    failure: LimelightError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
        try:
            await work()
        except LimelightError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
