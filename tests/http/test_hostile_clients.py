"""Clients that are slow, silent, torn off or no HTTP clients at all, over real sockets: each is refused in the shape of
the API or closed, holds up nobody, and leaves nothing behind.
"""

import json
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from limelight.http import HttpSettings, create_app, uvicorn_protocol
from limelight.http.connections import PROBE_RESERVE, ConnectionLimits, http_protocol
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, chat_body, exchange, running_server

pytestmark = pytest.mark.anyio

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(close=True, **fields):
    content = json.dumps(chat_body(**fields)).encode()
    ending = "Connection: close\r\n" if close else ""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{ending}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@asynccontextmanager
async def server(body_seconds=60.0, **limits):
    """A port, and the engine behind it; afterwards nothing is live."""
    protocol = http_protocol(ConnectionLimits(**{"max_connections": 100, "head_seconds": 60.0} | limits))
    settings = HttpSettings(body_timeout_seconds=body_seconds)
    engine = scripted_engine("yes " * 500, step_seconds=0.001)
    async with engine, running_server(create_app(engine, settings=settings), http=protocol) as port:
        yield port, engine
        await nothing_live(engine)


async def nothing_live(engine):
    with anyio.fail_after(60):
        while engine.statistics().num_requests or engine.statistics().num_free_pages < engine.statistics().num_pages:
            await anyio.lowlevel.checkpoint()


async def rest_of(stream):
    received = b""
    with anyio.fail_after(60):
        while True:
            try:
                received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return received


def refusal(received, status):
    """The error object of an answer that is nothing but a refusal."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), received[:200]
    assert b"content-type: application/json" in head
    assert b"connection: close" in head.lower()
    return json.loads(body)["error"]


# ---- many connections


async def test_idle_connections_make_room_for_who_has_something_to_say():
    async with server(max_connections=5) as (port, _), AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port)) for _ in range(50)]
        assert (await exchange(port, LIVEZ)).startswith(b"HTTP/1.1 200 ")
        assert (await exchange(port, post(max_tokens=1))).startswith(b"HTTP/1.1 200 ")
        for stream in idle[:40]:  # the oldest
            assert await rest_of(stream) == b""


async def test_a_full_server_refuses_the_next_but_answers_probes():
    async with server(max_connections=3) as (port, engine), AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port)) for _ in range(3)]
        for stream in busy:
            await stream.send(post(stream=True, max_tokens=2000))
            assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        refused = await exchange(port, post(max_tokens=1))
        assert refusal(refused, 503)["code"] == "overloaded"
        assert b"retry-after: 1" in refused
        assert (await exchange(port, LIVEZ)).startswith(b"HTTP/1.1 200 ")
        assert engine.statistics().num_requests == 3
        for stream in busy:
            await stream.aclose()
        await nothing_live(engine)
        assert (await exchange(port, post(max_tokens=1))).startswith(b"HTTP/1.1 200 ")


async def test_beyond_the_reserve_a_connection_is_closed_at_once(monkeypatch):
    monkeypatch.setattr(uvicorn_protocol, "PROBE_RESERVE", 0)
    async with server(max_connections=1) as (port, _), await anyio.connect_tcp("127.0.0.1", port) as busy:
        await busy.send(post(stream=True, max_tokens=2000))
        assert (await busy.receive()).startswith(b"HTTP/1.1 200 ")
        async with await anyio.connect_tcp("127.0.0.1", port) as one_too_many:
            assert refusal(await rest_of(one_too_many), 503)["message"].startswith("All 1 connections")


# ---- slow ones


async def test_who_says_nothing_is_closed_without_a_word():
    async with server(head_seconds=0.05) as (port, _):
        assert await exchange(port, b"") == b""


@pytest.mark.parametrize("head", [b"G", b"GET /livez HTTP/1.1\r\nx: ", b"\r\n\r\nGET /"])
async def test_a_head_that_does_not_come_is_given_up(head):
    async with server(head_seconds=0.05) as (port, _):
        assert "were not complete" in refusal(await exchange(port, head), 408)["message"]


async def test_so_is_that_of_a_later_request_on_the_same_connection():
    async with server(head_seconds=0.2) as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(LIVEZ.replace(b"Connection: close\r\n", b""))
        assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        await stream.send(b"GET /livez HT")
        refusal(await rest_of(stream), 408)


async def test_bytes_before_a_head_win_no_time():
    async with server(head_seconds=0.1) as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stream:
        with anyio.fail_after(60), pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
            while True:
                await stream.send(b"\r\n")
                with anyio.move_on_after(0.02):
                    await stream.receive()


async def test_a_body_that_trickles_is_given_up():
    async with server(body_seconds=0.2) as (port, engine), await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(post()[:-20])
        error = refusal(await rest_of(stream), 408)
        assert error["code"] == "request_timeout"
        assert "too slowly" in error["message"]
        assert engine.statistics().num_requests == 0


async def test_a_body_that_keeps_coming_is_waited_for():
    whole = post(max_tokens=1, messages=[{"role": "user", "content": "a" * 20_000}])
    async with server(body_seconds=1) as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stream:
        for start in range(0, len(whole), 2000):
            await stream.send(whole[start : start + 2000])
            await anyio.sleep(0.15)  # eleven of them take longer than the limit
        assert (await rest_of(stream)).startswith(b"HTTP/1.1 400 "), "it was read: it is too long for the model"


async def test_a_slow_upload_behind_a_running_answer_is_refused_after_it():
    async with server(body_seconds=0.2) as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(post(close=False, stream=True, max_tokens=200) + post()[:-20])
        received = await rest_of(stream)
    answer, _, refused = received.rpartition(b"HTTP/1.1 408 ")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"request_timeout" in refused


# ---- torn off


async def test_a_request_may_be_cut_at_any_byte():
    whole = post(stream=True, max_tokens=2000)
    async with server() as (port, engine):
        for length in range(len(whole) + 1):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(whole[:length])
        await nothing_live(engine)
        assert (await exchange(port, LIVEZ)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("reset", [False, True])
async def test_an_answer_may_be_cut_after_any_number_of_reads(reset):
    async with server() as (port, engine):
        for num_reads in range(20):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                if reset:
                    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                await stream.send(post(stream=True, max_tokens=2000))
                for _ in range(num_reads):
                    await stream.receive(100)
        await nothing_live(engine)


# ---- no HTTP, or none that can be trusted


@pytest.mark.parametrize(
    "head",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nnot a number\r\n",
        b"\x00" * 64,
    ],
)
async def test_what_is_no_http_is_refused_and_closed(head):
    async with server() as (port, engine):
        error = refusal(await exchange(port, head), 400)
        assert error["type"] == "invalid_request_error"
        assert engine.statistics().num_requests == 0


async def test_a_tls_client_at_a_plain_port_is_told_so_in_its_own_way():
    async with server() as (port, _):

        def shake_hands():
            context = ssl.create_default_context()
            with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, pytest.raises(ssl.SSLError):
                context.wrap_socket(plain, server_hostname="localhost")

        await anyio.to_thread.run_sync(shake_hands)


async def test_an_old_client_is_answered_and_closed():
    async with server() as (port, _):
        received = await exchange(port, b"GET /livez HTTP/1.0\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 200 ")


async def test_a_body_in_chunks_of_one_byte_is_read():
    content = json.dumps(chat_body(max_tokens=1)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"".join(b"1\r\n%b\r\n" % content[place : place + 1] for place in range(len(content)))
    async with server() as (port, _):
        assert (await exchange(port, head, [chunks, b"0\r\n\r\n"])).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_is_shorter_than_promised_runs_nothing():
    async with server() as (port, engine), await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(post().replace(b"Content-Length: ", b"Content-Length: 9"))
        await stream.send_eof()
        await rest_of(stream)
        assert engine.statistics().num_steps == 0


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/ping"])
async def test_probes_may_ask_for_the_head_alone(path):
    async with server() as (port, _):
        received = await exchange(port, LIVEZ.replace(b"GET /livez", f"HEAD {path}".encode()))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b""


def test_the_reserve_is_for_probes():
    assert PROBE_RESERVE > 0
