"""Ends of a server and of an embedded engine beside streams that would go on for ever.

Case: B114.
"""

import asyncio
import http.client
import json
import signal
from contextlib import closing

import anyio
import pytest

from limelight.errors import EngineNotRunning, Overloaded, RequestCancelled
from limelight.generation import SamplingParams
from limelight.http import create_app
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, chat_body, client_of
from tests.test_cli import serving as serving_process

ENDLESS = SamplingParams(max_tokens=None, seed=1)
HEADERS = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_stream_without_end_is_told_and_the_server_leaves(path: str) -> None:
    bodies = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}
    body = {"model": "scripted", "stream": True, **bodies.get(path, {"messages": [{"role": "user", "content": "a"}]})}
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    endless = "babble, step_seconds=0.02, max_model_len=100000, num_pages=20000"
    with serving_process(endless, "--drain-timeout", "1") as server:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            connection.request("POST", path, json.dumps({**body, limit: 90_000}), HEADERS)
            stream = connection.getresponse()
            assert stream.readline()
            server.signal(signal.SIGTERM)
            rest = stream.read()
        code, errors = server.end()
    assert b"engine_not_running" in rest or b"overloaded_error" in rest or b"response.failed" in rest
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert rest.endswith(b"data: [DONE]\n\n")
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.anyio
async def test_a_draining_application_refuses_with_when_to_come_back() -> None:
    engine = scripted_engine(step_seconds=0.001)
    async with engine, client_of(create_app(engine)) as client:
        async with client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=1000)) as running:
            draining = asyncio.create_task(engine.drain(60))
            while (refused := await client.post(CHAT, json=chat_body())).status_code == 200:
                pass
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert (await running.aread()).endswith(b"data: [DONE]\n\n")
        assert await draining


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["stop", "cancel", "drain"])
async def test_a_host_has_its_own_tasks_alone_when_the_engine_has_ended(way: str) -> None:
    before = asyncio.all_tasks()
    engine = scripted_engine(step_seconds=0.001)
    ended: list[Exception] = []
    started = asyncio.Event()

    async def host() -> None:
        async with engine, anyio.create_task_group() as group:

            async def read() -> None:
                try:
                    async with engine.stream("a", ENDLESS) as stream:
                        await anext(stream)
                        started.set()
                        await stream.result()
                except (EngineNotRunning, RequestCancelled, Overloaded) as error:
                    ended.append(error)

            group.start_soon(read)
            await started.wait()
            if way == "cancel":
                await anyio.sleep_forever()
            if way == "drain":
                assert not await engine.drain(0.01)
            await engine.stop()

    task = asyncio.create_task(host())
    await started.wait()
    if way == "cancel":
        task.cancel()
    with anyio.fail_after(60):
        await asyncio.wait([task])
    assert task.cancelled() == (way == "cancel")
    assert way == "cancel" or len(ended) == 1
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
