"""A real uvicorn server on a real socket, in the test's own event loop, over the scripted engine."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import anyio
import httpx
import pytest
import uvicorn
from litestar import Litestar

from limelight.engine import Engine
from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


class EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers, which belong to the test runner."""

    def install_signal_handlers(self) -> None: ...

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


@asynccontextmanager
async def running_server(app: Litestar) -> AsyncIterator[int]:
    """The port of a server that runs `app`."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1)
    server = EmbeddedServer(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        while not server.started:
            await anyio.lowlevel.checkpoint()
        yield listener.getsockname()[1]
        server.should_exit = True


@asynccontextmanager
async def serving(engine: Engine, settings: HttpSettings | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server over `engine`, which is started and stopped here."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine)
        port = await stack.enter_async_context(running_server(create_app(engine, settings=settings)))
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20))


@pytest.fixture
def serve() -> Serve:
    """`async with serve(engine, settings) as client`; without an engine, one that babbles."""

    def start(
        engine: Engine | None = None, settings: HttpSettings | None = None
    ) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        return serving(engine or scripted_engine(), settings)

    return start
