"""A client that goes away ends its work at once, whatever it was waiting for; one that never reads holds up nobody."""

import asyncio
import json

import anyio
import anyio.lowlevel
import pytest

from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, running_server, serving, streamed

pytestmark = pytest.mark.anyio


async def until(condition):
    """Turns the loop until `condition` holds; a test that waits in vain fails after five seconds."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


def idle(engine):
    statistics = engine.statistics()
    return (statistics.num_requests, statistics.num_running, statistics.num_waiting) == (0, 0, 0)


def free_pages(engine):
    statistics = engine.statistics()
    return statistics.num_free_pages, statistics.num_free_seats


async def send_request(port, path, body):
    """A raw connection that has sent a request and reads nothing."""
    stream = await anyio.connect_tcp("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    await stream.send(head.encode() + content)
    return stream


ENDLESS = {"ignore_eos": True, "max_tokens": 2000}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body(**ENDLESS)),
        (COMPLETIONS, completion_body(**ENDLESS)),
        (COMPLETIONS, completion_body(**ENDLESS, prompt=["a", "b", "c"], n=2)),
    ],
    ids=["chat", "completion", "several prompts"],
)
async def test_closing_the_socket_while_tokens_come_frees_everything(path, body, stream):
    engine = scripted_engine(step_seconds=0.001, num_pages=2000)
    async with engine, running_server(create_app(engine)) as port:
        before, tasks = free_pages(engine), len(asyncio.all_tasks())
        for _ in range(3):
            client = await send_request(port, path, {**body, "stream": stream})
            await until(lambda: engine.statistics().num_running > 0)
            await client.aclose()
            await until(lambda: idle(engine))
        assert free_pages(engine) == before
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


@pytest.mark.parametrize("stream", [False, True])
async def test_closing_the_socket_while_queued_behind_another_request_frees_the_place(stream):
    engine = scripted_engine(step_seconds=0.001, max_num_seqs=1)
    async with engine, running_server(create_app(engine)) as port:
        runs = await send_request(port, CHAT, chat_body(**ENDLESS))
        await until(lambda: engine.statistics().num_running == 1)
        waits = await send_request(port, CHAT, chat_body(**ENDLESS, stream=stream))
        await until(lambda: engine.statistics().num_waiting == 1)
        await waits.aclose()
        await until(lambda: engine.statistics().num_requests == 1)
        assert engine.statistics().num_running == 1
        await runs.aclose()
        await until(lambda: idle(engine))


async def test_a_stopped_stream_does_not_touch_another_one_with_the_same_client_id():
    engine = scripted_engine(step_seconds=0.001)
    async with serving(engine) as client:
        headers = {"x-request-id": "same"}
        request = chat_body(stream=True, seed=4, max_tokens=60)
        alone = streamed(await client.post(CHAT, json=request))
        results = []

        async def whole():
            response = await client.post(CHAT, json=request, headers=headers)
            assert response.headers["x-request-id"] == "same"
            results.append(streamed(response))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(whole)
            async with client.stream("POST", CHAT, json=request, headers=headers) as stopped:
                await anext(stopped.aiter_raw())
        assert [c["choices"][0]["delta"] for c in results[0]] == [c["choices"][0]["delta"] for c in alone]
        assert results[0][0]["id"] != alone[0]["id"]
        await until(lambda: idle(engine))


class Connection:
    """A hand-driven ASGI connection: the test decides when a send is taken and when the client leaves."""

    def __init__(self, path, body):
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"host", b"x")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.sent = []
        self._incoming = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self._left = anyio.Event()
        self._reads = anyio.Event()

    async def receive(self):
        if self._incoming:
            return self._incoming.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        await self._reads.wait()

    def read_on(self):
        self._reads.set()

    def leave(self):
        self._left.set()


async def test_a_client_that_never_reads_blocks_only_its_own_send():
    engine = scripted_engine()
    app = create_app(engine)
    async with engine, anyio.create_task_group() as tasks:
        stuck = Connection(CHAT, chat_body(stream=True, max_tokens=50))
        tasks.start_soon(app, stuck.scope, stuck.receive, stuck.send)
        await until(lambda: stuck.sent)
        other = Connection(CHAT, chat_body(stream=True, max_tokens=50))
        other.read_on()
        await app(other.scope, other.receive, other.send)
        assert other.sent[-1]["more_body"] is False
        assert len(stuck.sent) == 1
        await until(lambda: engine.statistics().num_running == 0)
        stuck.read_on()
    bodies = [b"".join(m.get("body", b"") for m in c.sent) for c in (stuck, other)]
    assert all(body.endswith(b"data: [DONE]\n\n") for body in bodies)
    assert len(stuck.sent) < len(other.sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_token_and_under_back_pressure_returns_at_once(stream):
    engine = scripted_engine(step_seconds=0.001)
    app = create_app(engine)
    async with engine:
        connection = Connection(CHAT, chat_body(stream=stream, **ENDLESS))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, connection.scope, connection.receive, connection.send)
            await until(lambda: connection.sent if stream else engine.statistics().num_running)
            connection.leave()
        assert len(connection.sent) == (1 if stream else 0)
        await until(lambda: idle(engine))


async def test_a_client_that_leaves_while_headers_wait_is_sent_nothing():
    engine = scripted_engine(step_seconds=0.2)
    app = create_app(engine, settings=HttpSettings(header_wait_seconds=5))
    async with engine:
        connection = Connection(CHAT, chat_body(stream=True, **ENDLESS))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, connection.scope, connection.receive, connection.send)
            await until(lambda: engine.statistics().num_requests)
            connection.leave()
        assert connection.sent == []
        await until(lambda: idle(engine))


async def test_two_hundred_clients_leave_at_any_moment_and_nothing_is_left_behind():
    engine = scripted_engine(num_pages=4000, max_num_requests=300)
    app = create_app(engine)
    async with engine:
        before, tasks_before = free_pages(engine), len(asyncio.all_tasks())
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                body = chat_body(stream=number % 2 == 0, max_tokens=100, logprobs=number % 3 == 0)
                connection = Connection(CHAT, body)
                connection.read_on()
                tasks.start_soon(app, connection.scope, connection.receive, connection.send)
                for _ in range(number % 7):
                    await anyio.lowlevel.checkpoint()
                connection.leave()
        await until(lambda: idle(engine))
        assert free_pages(engine) == before
        assert len(asyncio.all_tasks()) == tasks_before
