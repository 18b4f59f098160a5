"""A real server on a real socket in the test's own event loop, and what its answers must look like on the wire."""

import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import uvicorn

from limelight.engine import Engine
from limelight.http import HttpSettings, create_app
from limelight.http.exchange import Exchange
from limelight.telemetry.shield import Shield

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@asynccontextmanager
async def running_server(app: Any, **options: Any) -> AsyncIterator[int]:
    """The port of a server that runs `app`: uvicorn without its signal handlers and without its main loop's ticks."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", **options)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        try:
            yield listener.getsockname()[1]
        finally:
            await _shut_down(server)


async def _shut_down(server: uvicorn.Server) -> None:
    for listening in server.servers:
        listening.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    with anyio.fail_after(5, shield=True):
        while server.server_state.connections or server.server_state.tasks:
            await anyio.lowlevel.checkpoint()
        await server.lifespan.shutdown()


@asynccontextmanager
async def client_of(app: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that runs `app`."""
    async with running_server(app, **options) as port:
        base_url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as client:
            yield client


@asynccontextmanager
async def serving(engine: Engine, settings: HttpSettings | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server over `engine`, which is started and stopped here."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine)
        yield await stack.enter_async_context(client_of(create_app(engine, settings=settings)))


async def exchange(port: int, head: bytes, blocks: Sequence[bytes] = ()) -> bytes:
    """What a client receives that first sends everything and only then reads."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(head)
        for block in blocks:
            await stream.send(block)
        received = b""
        with anyio.fail_after(60):
            while True:
                try:
                    received += await stream.receive()
                except anyio.EndOfStream:
                    return received


def new_exchange(engine: Engine) -> Exchange:
    """The record of an exchange that nobody serves."""

    async def receive() -> Any:
        return await anyio.sleep_forever()

    async def send(message: Any) -> None:
        """Nobody reads."""

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    return Exchange(scope, receive, send, engine.telemetry, Shield("the tracer"))


def chat_body(**fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "scripted", "messages": HI, **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    """A completion request."""
    return {"model": "scripted", "prompt": "hi", **fields}


def frames(content: bytes) -> list[dict[str, Any]]:
    """The JSON of every frame. The stream must be framed by line feeds alone and end with one `[DONE]`."""
    assert b"\r" not in content
    *events, done, rest = content.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert max(len(line) for line in content.splitlines()) < 65536
    shown = [event for event in events if event != ": keep-alive"]
    assert all(event.startswith("data: ") for event in shown)
    return [json.loads(event.removeprefix("data: ")) for event in shown]


def streamed(response: httpx.Response) -> list[dict[str, Any]]:
    """The frames of a successful stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return frames(response.content)


def by_choice(chunks: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """What each choice got, in order."""
    choices: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    return choices


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a response that must have `status` and the official shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.content.count(b"Traceback") == 0
    body = response.json()
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code", "request_id"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    assert isinstance(error["param"], str | None)
    assert error["request_id"] == response.headers["x-request-id"]
    return error
