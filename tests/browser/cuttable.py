"""A proxy whose connections can be cut, and that can be away for a while."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc

BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


class CuttableProxy:
    """Passes bytes on to `port` of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._connections: set[anyio.abc.SocketStream] = set()
        self.away = False

    async def cut(self) -> None:
        """Closes every connection, and refuses new ones until `away` is False again."""
        self.away = True
        for stream in list(self._connections):
            await anyio.aclose_forcefully(stream)

    def lead_to(self, port: int) -> None:
        """Passes new connections on to another port."""
        self._target = port
        self.away = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its address."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._serve)
            yield f"http://127.0.0.1:{port}"
            tasks.cancel_scope.cancel()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            if self.away:
                return
            async with await anyio.connect_tcp("127.0.0.1", self._target) as server:
                pair = {client, server}
                self._connections |= pair
                async with anyio.create_task_group() as tasks:
                    for source, sink in ((client, server), (server, client)):
                        tasks.start_soon(_pass_on, source, sink, tasks.cancel_scope)
                self._connections -= pair


async def _pass_on(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, over: anyio.CancelScope) -> None:
    with suppress(*BROKEN):
        while True:
            await sink.send(await source.receive())
    over.cancel()
