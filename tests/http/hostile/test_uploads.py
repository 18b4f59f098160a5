"""Bodies that come slowly, not at all, or too many at once."""

import json

import anyio
import pytest

from limelight.errors import ConfigError
from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.http.hostile.raw import answer_to, bounded_server, get, head, post, read_to_end, responses
from tests.http.wire import CHAT, chat_body

pytestmark = pytest.mark.anyio


def padded(num_bytes: int) -> bytes:
    """A chat with so many blanks after it."""
    body = json.dumps(chat_body(max_tokens=1)).encode() + b" " * num_bytes
    headers = ("Connection: close", "Content-Type: application/json", f"Content-Length: {len(body)}")
    return head(f"POST {CHAT} HTTP/1.1", *headers) + body


SLOW = HttpSettings(body_timeout_seconds=0.1, min_body_bytes_per_second=1000)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("begun", [b"", b'{"model": "scr'], ids=["nothing", "a part"])
async def test_a_body_that_does_not_come_is_refused(path, begun):
    sent = head(f"POST {path} HTTP/1.1", "Content-Type: application/json", "Content-Length: 1000") + begun
    async with bounded_server(scripted_engine(), settings=SLOW) as port:
        received = await answer_to(port, sent)
    ((status, headers, body),) = responses(received)
    assert (status, headers[b"connection"]) == (408, b"close")
    assert f"{len(begun)} bytes of the request body".encode() in body


async def test_a_body_that_keeps_the_rate_is_taken():
    sent = post("Connection: close", max_tokens=1, user="x" * 4000)
    async with (
        bounded_server(scripted_engine(), settings=SLOW) as port,
        await anyio.connect_tcp("127.0.0.1", port) as client,
    ):
        await client.send(sent[:2000])
        await anyio.sleep(0.3)  # more than the timeout, and less than 2,000 bytes grant beyond it
        await client.send(sent[2000:])
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 200 ")


async def test_a_refused_upload_that_does_not_come_keeps_its_own_status():
    settings = HttpSettings(api_keys={"a": "key"}, body_timeout_seconds=0.1)
    sent = head(f"POST {CHAT} HTTP/1.1", "Connection: close", "Content-Length: 1000")
    async with bounded_server(scripted_engine(), settings=settings) as port:
        assert responses(await answer_to(port, sent))[0][0] == 401


async def test_bodies_share_a_memory_of_which_small_ones_take_nothing():
    settings = HttpSettings(body_memory_bytes=300_000)
    large = padded(300_000)
    async with bounded_server(scripted_engine(), settings=settings) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as first:
            await first.send(large[:-1])
            with anyio.fail_after(60):
                while (refusal := responses(await answer_to(port, large)))[0][0] == 200:
                    pass  # the first one's body has not been read yet
            assert refusal[0][0] == 503
            assert b"bodies of the requests in hand" in refusal[0][2]
            assert responses(await answer_to(port, padded(60_000)))[0][0] == 200
            await first.send(large[-1:])
            assert (await first.receive()).startswith(b"HTTP/1.1 200 ")
        assert responses(await answer_to(port, large))[0][0] == 200


async def test_bodies_that_nobody_keeps_take_none_of_it():
    settings = HttpSettings(api_keys={"a": "key"}, body_memory_bytes=1)
    sent = padded(300_000)
    async with bounded_server(scripted_engine(), settings=settings) as port:
        assert responses(await answer_to(port, sent))[0][0] == 401


@pytest.mark.parametrize(
    "asked", [head(f"POST {CHAT} HTTP/1.1", "Expect: 100-continue", "Content-Length: 20000000"), get("/nowhere")]
)
async def test_a_refusal_before_the_body_needs_none_of_it(asked):
    async with bounded_server(scripted_engine()) as port, await anyio.connect_tcp("127.0.0.1", port) as client:
        await client.send(asked)
        with anyio.fail_after(60):
            assert (await client.receive())[9:12] in (b"413", b"404")


@pytest.mark.parametrize(
    "fields", [{"body_timeout_seconds": 0}, {"min_body_bytes_per_second": 0}, {"body_memory_bytes": 0}]
)
def test_impossible_bounds_are_refused(fields):
    with pytest.raises(ConfigError, match=f"{next(iter(fields))} is 0"):
        HttpSettings(**fields)
