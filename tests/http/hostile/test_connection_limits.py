"""Connections beyond the limit: who waits makes way, probes have a reserve, and the rest hear a clear refusal."""

import asyncio
import contextlib
import json
import socket

import anyio
import pytest

from limelight.errors import ConfigError
from limelight.http.connections import ConnectionLimits
from limelight.http.uvicorn_protocol import BoundedHttpToolsProtocol
from limelight.testing import scripted_engine
from tests.http.hostile.raw import (
    answer_to,
    bounded_server,
    deaf_client,
    get,
    head,
    post,
    read_to_end,
    refusal_of,
    responses,
    until,
)

pytestmark = pytest.mark.anyio

FEW = ConnectionLimits(max_connections=3)
ENDLESS = post(stream=True, ignore_eos=True, max_tokens=100_000)


@contextlib.asynccontextmanager
async def clients(port, number, sent):
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port)) for _ in range(number)]
        for client in opened:
            await client.send(sent)
        yield opened


@pytest.mark.parametrize("sent", [b"\r\n", b"GET /", get("/livez")[:-2], get("/livez")], ids=repr)
async def test_connections_without_a_request_make_way_the_oldest_first(sent):
    async with bounded_server(scripted_engine(), FEW) as port, clients(port, 3, sent) as idle:
        if sent == get("/livez"):
            for client in idle:
                assert (await client.receive()).startswith(b"HTTP/1.1 200")
        await answer_to(port, get("/livez", "Connection: close"))
        received = await answer_to(port, post("Connection: close", max_tokens=1))
        assert responses(received)[0][0] == 200
        assert await read_to_end(idle[0]) == b""


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/ping?x=1"])
async def test_beyond_the_limit_probes_are_answered_and_others_refused(path):
    engine = scripted_engine(step_seconds=0.001)
    async with bounded_server(engine, FEW) as port:
        async with clients(port, 3, ENDLESS):
            await until(lambda: engine.statistics().num_running == 3)
            ((status, headers, _),) = responses(await answer_to(port, get(path)))
            assert (status, headers[b"connection"]) == (200, b"close")
            error = refusal_of(received := await answer_to(port, post(max_tokens=1)), 503)
            assert (error["code"], error["type"]) == ("overloaded", "overloaded_error")
            assert "All 3 connections" in error["message"]
            assert b"retry-after: 1" in received
            assert engine.statistics().num_running == 3
        await until(lambda: not engine.statistics().num_requests)
        assert responses(await answer_to(port, post("Connection: close", max_tokens=1)))[0][0] == 200


async def test_beyond_the_reserve_everything_is_refused_at_once(monkeypatch):
    monkeypatch.setattr("limelight.http.uvicorn_protocol.PROBE_RESERVE", 0)
    engine = scripted_engine(step_seconds=0.001)
    async with bounded_server(engine, FEW) as port, clients(port, 3, ENDLESS):
        await until(lambda: engine.statistics().num_running == 3)
        assert "All 3 connections" in refusal_of(await answer_to(port), 503)["message"]


async def test_a_connection_that_begins_nothing_is_closed_without_a_word():
    async with bounded_server(scripted_engine(), ConnectionLimits(head_seconds=0.05)) as port:
        assert await answer_to(port) == b""


@pytest.mark.parametrize(
    "begun", [b"GE", get("/livez")[:-2], get("/livez") + b"GET /"], ids=["line", "headers", "second"]
)
async def test_a_head_that_does_not_end_is_refused(begun):
    async with bounded_server(scripted_engine(), ConnectionLimits(head_seconds=0.05)) as port:
        received = await answer_to(port, begun)
    last = received[received.rindex(b"HTTP/1.1 ") :]
    error = refusal_of(last, 408)
    assert (error["code"], error["message"].endswith("after 0.05 s")) == ("request_timeout", True)


async def test_empty_lines_are_no_request_however_many():
    async with (
        bounded_server(scripted_engine(), ConnectionLimits(head_seconds=0.2)) as port,
        clients(port, 1, b"") as (client,),
    ):
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            while True:
                await client.send(b"\r\n")
                await anyio.lowlevel.checkpoint()


@pytest.fixture
def small_send_buffers(monkeypatch):
    """The kernel takes little of what the server writes, so that a client that reads nothing shows soon."""
    made = BoundedHttpToolsProtocol.connection_made

    def connection_made(protocol, transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(protocol, transport)

    monkeypatch.setattr(BoundedHttpToolsProtocol, "connection_made", connection_made)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_takes_nothing_is_cut_off(stream, small_send_buffers):
    engine = scripted_engine(max_model_len=1 << 16, step_seconds=0.001)
    asked = post(stream=True, ignore_eos=True, max_tokens=60_000, logprobs=True)
    if not stream:
        text = json.dumps({"model": "scripted", "prompt": "x" * 200_000}).encode()
        asked = head("POST /tokenize HTTP/1.1", "Connection: close", f"Content-Length: {len(text)}") + text
    async with (
        bounded_server(engine, ConnectionLimits(send_seconds=0.2)) as port,
        deaf_client(port) as client,
    ):
        loop = asyncio.get_running_loop()
        with anyio.fail_after(60), pytest.raises(ConnectionError):
            await loop.sock_sendall(client, asked)
            while True:
                await loop.sock_sendall(client, b"\r\n")
                await anyio.sleep(0.05)
        assert engine.statistics().num_steps < 30_000
        await until(lambda: not engine.statistics().num_requests)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_connections": 0}, "max_connections is 0"),
        ({"head_seconds": 0}, "head_seconds is 0"),
        ({"send_seconds": float("inf")}, "send_seconds is inf"),
    ],
)
def test_impossible_limits_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        ConnectionLimits(**fields)
