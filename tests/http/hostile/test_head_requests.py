"""HEAD is GET without the body."""

import anyio
import pytest

from limelight.testing import scripted_engine
from tests.http.hostile.raw import answer_to, bounded_server, get
from tests.http.wire import CHAT

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/livez", "/v1/models", "/metrics", "/ui", "/nowhere", CHAT, "/v1/requests/events"])
async def test_it_has_the_status_and_headers_of_get_and_no_body(path):
    async with bounded_server(scripted_engine()) as port:
        received = await answer_to(port, get(path, "Connection: close").replace(b"GET", b"HEAD", 1))
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(get(path))
            with anyio.fail_after(60):
                full = await client.receive()
    assert received.endswith(b"\r\n\r\n")
    assert received.count(b"\r\n\r\n") == 1
    names = [
        {line.partition(b":")[0] for line in each.partition(b"\r\n\r\n")[0].split(b"\r\n")} for each in (received, full)
    ]
    assert names[0] - {b"connection"} == names[1] - {b"transfer-encoding"}
