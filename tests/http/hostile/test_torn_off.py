"""Connections that end, stall or speak something else in the middle: each leaves nothing behind and harms no answer."""

import socket
import ssl

import anyio
import pytest

from limelight.http import HttpSettings
from limelight.http.connections import ConnectionLimits
from limelight.testing import scripted_engine
from tests.http.hostile.raw import answer_to, bounded_server, get, post, read_to_end, refusal_of, responses

pytestmark = pytest.mark.anyio

CLOSE = "Connection: close"


def long_engine():
    return scripted_engine("yes " * 500, step_seconds=0.001)


async def test_a_request_may_be_cut_at_any_byte():
    whole = post(stream=True, max_tokens=2000)
    async with bounded_server(long_engine()) as port:
        for length in range(len(whole) + 1):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(whole[:length])
        assert [status for status, _, _ in responses(await answer_to(port, get("/livez", CLOSE)))] == [200]


@pytest.mark.parametrize("reset", [False, True])
async def test_an_answer_may_be_cut_after_any_number_of_reads(reset):
    async with bounded_server(long_engine()) as port:
        for num_reads in range(20):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                if reset:
                    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                await stream.send(post(stream=True, max_tokens=2000))
                for _ in range(num_reads):
                    await stream.receive(100)


async def test_a_body_that_is_shorter_than_promised_runs_nothing():
    engine = long_engine()
    async with bounded_server(engine) as port:
        await answer_to(port, post().replace(b"Content-Length: ", b"Content-Length: 9"), half_close=True)
        assert engine.statistics().num_steps == 0


async def test_the_head_of_a_later_request_has_to_come_as_well():
    limits = ConnectionLimits(head_seconds=0.2)
    async with bounded_server(long_engine(), limits) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(get("/livez"))
        assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        await stream.send(b"GET /livez HT")
        refusal_of(await read_to_end(stream), 408)


async def test_a_slow_upload_behind_a_running_answer_is_refused_after_it():
    settings = HttpSettings(body_timeout_seconds=0.2)
    async with bounded_server(long_engine(), settings=settings) as port:
        received = await answer_to(port, post(stream=True, max_tokens=200) + post()[:-20])
    answer, _, refused = received.rpartition(b"HTTP/1.1 408 ")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"request_timeout" in refused


async def test_a_tls_client_at_a_plain_port_is_told_so_in_its_own_way():
    async with bounded_server(long_engine()) as port:

        def shake_hands():
            context = ssl.create_default_context()
            with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, pytest.raises(ssl.SSLError):
                context.wrap_socket(plain, server_hostname="localhost")

        await anyio.to_thread.run_sync(shake_hands)


async def test_an_old_client_is_answered_and_closed():
    async with bounded_server(long_engine()) as port:
        received = await answer_to(port, b"GET /livez HTTP/1.0\r\n\r\n")
    assert [status for status, _, _ in responses(received)] == [200]
