"""A client that has shut its sending half gets its answer; one that has left looks the same and is not waited for."""

import json

import anyio
import pytest

from limelight.testing import scripted_engine
from tests.http.hostile.raw import answer_to, bounded_server, get, post, responses, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_whole_answer_reaches_it(version):
    async with bounded_server(scripted_engine("yes", step_seconds=0.02)) as port:
        received = await answer_to(port, post(version=version, max_tokens=3), half_close=True)
    ((status, _, body),) = responses(received)
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == "yes"
    assert (b"100 Continue" in received) == (version == "1.1")


async def test_a_stream_reaches_it():
    async with bounded_server(scripted_engine(step_seconds=0.01)) as port:
        received = await answer_to(port, post(stream=True, ignore_eos=True, max_tokens=40), half_close=True)
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_requests_in_line_are_all_answered():
    async with bounded_server(scripted_engine("yes")) as port:
        received = await answer_to(port, post(max_tokens=3) * 3 + get("/livez"), half_close=True)
    assert [status for status, _, _ in responses(received)] == [200] * 4


@pytest.mark.parametrize("path", ["/livez", "/v1/models", "/nowhere"])
async def test_an_answer_that_is_there_at_once_reaches_it(path):
    async with bounded_server(scripted_engine()) as port:
        ((status, _, body),) = responses(await answer_to(port, get(path), half_close=True))
    assert status == (404 if path == "/nowhere" else 200)
    assert json.loads(body)


@pytest.mark.parametrize("begin", [b"", b"GET /li", get("/livez")[:-2], post(max_tokens=1)[:-3]])
async def test_a_request_that_can_never_be_complete_ends_the_connection(begin):
    async with bounded_server(scripted_engine()) as port:
        assert await answer_to(port, begin, half_close=True) == b""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_one_that_leaves_before_its_answer_ends_its_request(stream, version):
    engine = scripted_engine(step_seconds=0.001)
    async with bounded_server(engine) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(post(version=version, stream=stream, ignore_eos=True, max_tokens=100_000))
            await until(lambda: engine.statistics().num_running)
        await until(lambda: not engine.statistics().num_requests)


async def test_one_that_leaves_after_shutting_its_sending_half_ends_its_request():
    engine = scripted_engine(step_seconds=0.001)
    async with bounded_server(engine) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(post(ignore_eos=True, max_tokens=100_000))
            await client.send_eof()
            assert await client.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
            await until(lambda: engine.statistics().num_running)
        await until(lambda: not engine.statistics().num_requests)
