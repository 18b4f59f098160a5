"""Work that ends at once when its client goes away, whatever it waits for: a queue slot, a token, a full socket."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
from litestar.types import Message, Receive, Send

from limelight.errors import LimelightError


async def run_until_disconnect(receive: Receive, send: Send, work: Callable[[Send], Awaitable[None]]) -> None:
    """Run `work`; cancel it if the client leaves first. The body must have been read already.

    A server says so by `receive`, or by an `OSError` of `send` (ASGI specification, HTTP 2.4).

    Args:
        work: called with what it is to send by.

    Raises:
        LimelightError: what `work` raised, as itself and not inside an exception group.
    """
    failure: LimelightError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)

        async def send_or_end(message: Message) -> None:
            try:
                await send(message)
            except OSError:
                tasks.cancel_scope.cancel()
                await anyio.lowlevel.checkpoint()

        try:
            await work(send_or_end)
        except LimelightError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
