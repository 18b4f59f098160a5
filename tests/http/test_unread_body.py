"""A refusal arrives although the client is still sending."""

import pytest

from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, exchange, running_server

pytestmark = pytest.mark.anyio

MEGABYTE = b" " * 2**20


def post(*headers, num_bytes):
    lines = (f"POST {CHAT} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {num_bytes}", *headers)
    return "\r\n".join((*lines, "", "")).encode()


@pytest.mark.parametrize(
    ("headers", "settings", "status"),
    [
        (("Content-Type: application/json",), HttpSettings(), 413),
        (("Content-Type: text/plain",), HttpSettings(), 415),
        (("Content-Type: application/json",), HttpSettings(api_keys={"a": "key"}), 401),
        (("Content-Type: application/json",), HttpSettings(allowed_hosts=("other",)), 403),
    ],
    ids=["too large", "not JSON", "no key", "wrong host"],
)
async def test_a_refused_upload_is_read_to_its_end_where_the_connection_ends_with_it(headers, settings, status):
    engine = scripted_engine()
    async with engine, running_server(create_app(engine, settings=settings)) as port:
        received = await exchange(port, post(*headers, num_bytes=12 * 2**20), [MEGABYTE] * 12)
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert received.endswith(b"}}")


async def test_who_asks_before_sending_is_refused_at_once():
    head = post("Content-Type: application/json", "Expect: 100-continue", num_bytes=12 * 2**20)
    engine = scripted_engine()
    async with engine, running_server(create_app(engine)) as port:
        received = await exchange(port, head, [])
    assert received.startswith(b"HTTP/1.1 413 ")


STREAMS = ["/v1/requests/events", "/v1/streams/some", "/v1/responses/resp_some?stream=true"]


@pytest.mark.parametrize("path", STREAMS)
async def test_a_body_that_a_stream_does_not_need_and_that_never_comes_is_refused_before_the_stream_begins(path):
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\n".encode()
    engine = scripted_engine()
    settings = HttpSettings(body_timeout_seconds=0.01)
    async with engine, running_server(create_app(engine, settings=settings)) as port:
        received = await exchange(port, head)
    assert received.startswith(b"HTTP/1.1 408 ")
