"""Requests as bytes, and clients that misbehave with them."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel

from limelight.engine import Engine
from limelight.http import HttpSettings, create_app
from limelight.http.connections import ConnectionLimits, http_protocol
from tests.http.wire import CHAT, chat_body, running_server

GUARD_SECONDS = 60


@contextlib.asynccontextmanager
async def bounded_server(
    engine: Engine, limits: ConnectionLimits | None = None, settings: HttpSettings | None = None
) -> AsyncIterator[int]:
    """The port of a server as `limelight serve` runs it. All pages and seats must be free again at the end."""
    protocol = http_protocol(limits or ConnectionLimits())
    async with engine, running_server(create_app(engine, settings=settings), http=protocol) as port:
        before = engine.statistics()
        yield port
        await until(lambda: engine.statistics().num_requests == 0)
        await until(lambda: engine.statistics().num_free_seats == before.num_free_seats)
        assert engine.statistics().num_free_pages == before.num_free_pages


async def until(condition: Any) -> None:
    """Wait for a state."""
    with anyio.fail_after(GUARD_SECONDS):
        while not condition():
            await anyio.lowlevel.checkpoint()


def head(first: str, *headers: str) -> bytes:
    return "\r\n".join((first, "Host: x", *headers, "", "")).encode()


def get(path: str, *headers: str) -> bytes:
    return head(f"GET {path} HTTP/1.1", *headers)


def post(*headers: str, version: str = "1.1", **fields: Any) -> bytes:
    """A chat."""
    body = json.dumps(chat_body(**fields)).encode()
    return head(f"POST {CHAT} HTTP/{version}", f"Content-Length: {len(body)}", *headers) + body


@contextlib.asynccontextmanager
async def deaf_client(port: int) -> AsyncIterator[socket.socket]:
    """A connection that nothing reads from, with a small buffer."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        yield client


async def read_to_end(stream: anyio.abc.SocketStream) -> bytes:
    """Until the server closes."""
    received = b""
    with anyio.fail_after(GUARD_SECONDS):
        while True:
            try:
                received += await stream.receive()
            except anyio.EndOfStream:
                return received


async def answer_to(port: int, *parts: bytes, half_close: bool = False) -> bytes:
    """What a client receives until the server closes."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        for part in parts:
            await stream.send(part)
        if half_close:
            await stream.send_eof()
        return await read_to_end(stream)


def responses(received: bytes) -> Sequence[tuple[int, dict[bytes, bytes], bytes]]:
    """Status, headers and body of every final response; all must have a length."""
    found = []
    while received:
        top, _, received = received.partition(b"\r\n\r\n")
        first, *lines = top.split(b"\r\n")
        status = int(first.split()[1])
        if status == 100:
            continue
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        length = int(headers[b"content-length"])
        found.append((status, headers, received[:length]))
        received = received[length:]
    return found


def refusal_of(received: bytes, status: int) -> dict[str, Any]:
    """The error of the only response, which must be complete and say that the connection ends."""
    ((given, headers, body),) = responses(received)
    assert given == status, received
    assert headers[b"connection"] == b"close"
    assert headers[b"content-type"] == b"application/json"
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code", "request_id"}
    assert error["request_id"].encode() == headers[b"x-request-id"] == headers[b"request-id"]
    return error
