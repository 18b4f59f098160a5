"""The event loop that all requests share: nobody's size, number or silence holds it up, and no stream is lost on it.

Cases: B116, B117, B119, B120.
"""

import gc
import json
import time
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import httpx
import pytest

from limelight.http import create_app
from limelight.http.connections import ConnectionLimits
from limelight.testing import scripted_engine
from tests.cases.small_engines import idle, until
from tests.http.hostile.raw import bounded_server
from tests.http.test_disconnect import Connection
from tests.http.wire import CHAT, chat_body, client_of, serving

pytestmark = pytest.mark.anyio

MEGABYTE = 1_000_000
LONGEST_TURN = 0.2
"""Seconds of processor time that one turn of the loop may take; a busy machine does not make it longer."""


@asynccontextmanager
async def watched_loop():
    """The longest turn of the loop, in seconds of its thread's processor time."""
    longest = [0.0]

    async def watch():
        last = time.thread_time()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.thread_time()
            longest[0] = max(longest[0], now - last)
            last = now

    gc.freeze()  # as `limelight serve` does: collections need not walk what was there before
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            yield longest
            group.cancel_scope.cancel()
    finally:
        gc.unfreeze()


async def test_clients_that_never_read_are_given_up_and_others_are_served_meanwhile():
    """Choices and log-probabilities that nobody takes pile up for as long as a send may take, and no longer."""
    engine = scripted_engine(lambda turn: 97, step_seconds=0.001, max_model_len=2**16, num_pages=2**16)
    content = json.dumps(chat_body(stream=True, n=4, max_tokens=60_000, logprobs=True, top_logprobs=20)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    async with bounded_server(engine, ConnectionLimits(send_seconds=0.5)) as port, anyio.create_task_group() as group:

        async def never_read():
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(head + content)
                await anyio.sleep_forever()

        for _ in range(10):
            group.start_soon(never_read)
        await until(lambda: engine.statistics().num_requests == 10)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            answer = await client.post(CHAT, json=chat_body(max_tokens=50))
        assert answer.status_code == 200
        with anyio.fail_after(60):
            while not idle(engine):
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("num_bytes", "status"), [(5 * MEGABYTE, 400), (27 * MEGABYTE, 413)])
async def test_a_huge_prompt_is_refused_without_holding_the_loop_up(num_bytes, status):
    engine = scripted_engine("an answer " * 200, step_seconds=0.001)
    async with engine, client_of(create_app(engine)) as client, watched_loop() as longest:
        body = json.dumps(chat_body(messages=[{"role": "user", "content": "word " * (num_bytes // 5)}])).encode()
        longest[0] = 0.0  # what the client did to make it
        async with client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=500)) as running:
            refused = await client.post(CHAT, content=body, headers={"content-type": "application/json"})
            assert (await client.get("/livez")).status_code == 200
            assert (await running.aread()).endswith(b"data: [DONE]\n\n")
    assert refused.status_code == status
    assert longest[0] < LONGEST_TURN


async def test_fifty_large_prompts_at_once_hold_nobody_up():
    engine = scripted_engine("an answer " * 200, step_seconds=0.001)
    async with engine, client_of(create_app(engine)) as client, watched_loop() as longest:
        body = json.dumps(chat_body(messages=[{"role": "user", "content": "word " * 40_000}])).encode()
        statuses = []

        async def ask():
            answer = await client.post(CHAT, content=body, headers={"content-type": "application/json"})
            statuses.append(answer.status_code)

        async with client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=500)) as running:
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(ask)
            assert (await running.aread()).endswith(b"data: [DONE]\n\n")
    assert statuses == [400] * 50
    assert longest[0] < LONGEST_TURN


async def test_probes_are_answered_beside_sixty_four_streams():
    """The streams are driven by hand, so that their clients' work is not part of the turns."""
    engine = scripted_engine("an answer " * 50, max_num_seqs=64, step_seconds=0.01)
    app = create_app(engine)
    body = chat_body(stream=True, max_tokens=300, logprobs=True, top_logprobs=20)
    num_ended = num_probes = 0

    async def read() -> None:
        nonlocal num_ended
        connection = Connection(CHAT, body)
        connection.read_on()
        await app(connection.scope, connection.receive, connection.send)
        num_ended += 1

    async with engine, client_of(app) as client, watched_loop() as longest, anyio.create_task_group() as group:
        for _ in range(64):
            group.start_soon(read)
        await until(lambda: engine.statistics().num_running > 32)
        while num_ended < 64:
            for path in ("/health", "/metrics"):
                assert (await client.get(path)).status_code == 200
            num_probes += 1
        await until(lambda: idle(engine))
    assert num_probes > 1
    assert longest[0] < LONGEST_TURN


async def test_no_stream_stalls_because_its_task_was_collected_as_garbage(caplog):
    """A task that nobody holds may be collected in the middle; here there are collections all the time."""
    answers: list[httpx.Response] = []
    engine = scripted_engine("an answer")
    async with serving(engine) as client:

        async def ask() -> None:
            answers.append(await client.post(CHAT, json=chat_body(stream=True)))

        async def collect() -> None:
            while True:
                gc.collect()
                await anyio.sleep(0.02)

        gc.freeze()  # what is there already need not be looked at each time
        try:
            with anyio.fail_after(90):
                async with anyio.create_task_group() as collecting:
                    collecting.start_soon(collect)
                    async with anyio.create_task_group() as streams:
                        for _ in range(200):
                            streams.start_soon(ask)
                    collecting.cancel_scope.cancel()
        finally:
            gc.unfreeze()
        await until(lambda: idle(engine))
    assert [answer.status_code for answer in answers] == [200] * 200
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert "was destroyed but it is pending" not in caplog.text
