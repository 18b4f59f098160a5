"""What our HTTP protocol adds to uvicorn's: bounded heads, and no work for a client that left requests in line."""

import json

import anyio
import anyio.lowlevel
import pytest

from limelight.http import create_app
from limelight.http.uvicorn_protocol import MAX_HEAD_BYTES, MAX_PIPELINED, BoundedHttpToolsProtocol
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, chat_body, exchange, running_server

pytestmark = pytest.mark.anyio

MEGABYTE = b" " * 2**20


@pytest.mark.parametrize("block", [b"a" * 4096, b"x: a\r\n" * 1024], ids=["one header", "many headers"])
async def test_an_endless_head_is_refused_and_the_connection_closed(block):
    engine = scripted_engine()
    async with engine, running_server(create_app(engine), http=BoundedHttpToolsProtocol) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            with anyio.fail_after(60), pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                await stream.send(b"GET /livez HTTP/1.1\r\nx: ")
                while True:
                    await stream.send(block)
        received = await exchange(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nx: " + b"a" * MAX_HEAD_BYTES, [b"a" * 10])
    assert received.startswith(b"HTTP/1.1 400 ")


async def test_a_large_body_after_a_small_head_is_no_large_head():
    body = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":1}' + MEGABYTE
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    engine = scripted_engine()
    async with engine, running_server(create_app(engine), http=BoundedHttpToolsProtocol) as port:
        received = await exchange(port, head, [body[:100], body[100:]])
    assert received.startswith(b"HTTP/1.1 200 ")


def post(**fields):
    content = json.dumps(chat_body(**fields)).encode()
    return f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_waiting", [0, 1, MAX_PIPELINED])
async def test_a_client_that_leaves_with_requests_in_line_ends_the_running_one(stream, num_waiting):
    engine = scripted_engine(step_seconds=0.001)
    async with engine, running_server(create_app(engine), http=BoundedHttpToolsProtocol) as port:
        free = engine.statistics().num_free_pages
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(post(ignore_eos=True, max_tokens=2000, stream=stream) * (1 + num_waiting))
            with anyio.fail_after(60):
                while not engine.statistics().num_running:
                    await anyio.lowlevel.checkpoint()
        with anyio.fail_after(60):
            while engine.statistics().num_requests or engine.statistics().num_running:
                await anyio.lowlevel.checkpoint()
        assert engine.statistics().num_steps < 1000
        assert engine.statistics().num_free_pages == free


async def test_requests_in_line_are_answered_in_order():
    engine = scripted_engine("yes")
    lines = [post(max_tokens=number) for number in (1, 2, 3)] * 10
    last = post(max_tokens=4).replace(b"Host: x", b"Host: x\r\nConnection: close")
    async with engine, running_server(create_app(engine), http=BoundedHttpToolsProtocol) as port:
        received = await exchange(port, b"".join(lines) + last)
    bodies = [part.partition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 OK")[1:]]
    texts = [json.loads(body)["choices"][0]["message"]["content"] for body in bodies]
    assert texts == ["y", "ye", "yes"] * 10 + ["yes"]
