"""Applications of others with Limelight mounted at /llm, each in its framework's own way."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from litestar import Litestar, asgi, get
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from limelight import Engine

Host = Callable[[Engine], Any]


def fastapi_host(engine: Engine) -> FastAPI:
    """The engine lives in the host's lifespan."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/own")
    async def own() -> str:
        return (await engine.generate("x")).text

    app.mount("/llm", engine.app())
    return app


def starlette_host(engine: Engine) -> Starlette:
    """The same."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    async def own(_request: Request) -> PlainTextResponse:
        return PlainTextResponse((await engine.generate("x")).text)

    return Starlette(routes=[Route("/own", own), Mount("/llm", engine.app())], lifespan=lifespan)


def litestar_host(engine: Engine) -> Litestar:
    """`asgi` with `is_mount`; `copy_scope` keeps what the mounted application writes there from the host."""

    @get("/own")
    async def own() -> str:
        return (await engine.generate("x")).text

    mounted = asgi("/llm", is_mount=True, copy_scope=True)(engine.app())
    return Litestar([own, mounted], lifespan=[lambda _app: engine], logging_config=None)


HOSTS: list[Host] = [fastapi_host, starlette_host, litestar_host]
