import asyncio
import gc
import threading
import weakref
from functools import partial

import anyio
import pytest

from limelight.actors import timed_answer
from limelight.actors.channel import Channel
from limelight.actors.messages import Encoded
from limelight.actors.timed_answer import TimedAnswer
from limelight.actors.worker_thread import WorkerThreads
from limelight.errors import Overloaded

pytestmark = pytest.mark.anyio


class Prompt:
    """Stands for much text."""


@pytest.fixture
async def busy_threads():
    release = threading.Event()
    threads = WorkerThreads("limelight-test")
    threads.put(lambda: release.wait(60))
    yield threads
    release.set()
    await threads.close()


def encoded(_prompt):
    return Encoded((1,), None)


async def test_a_request_that_leaves_while_all_threads_are_busy_takes_its_prompt_along(busy_threads, monkeypatch):
    monkeypatch.setattr(timed_answer, "LOOK_SECONDS", 0.001)
    inbox, pending, prompt = Channel("request", 4), set(), Prompt()
    held = weakref.ref(prompt)
    work = partial(encoded, prompt)
    TimedAnswer(work, inbox.sender, busy_threads, 60.0, Overloaded, Overloaded, pending)
    del work, prompt
    for _ in range(3):
        await asyncio.sleep(0.001)
    assert held() is not None
    inbox.close()
    with anyio.fail_after(60):
        while pending:
            await asyncio.sleep(0.001)
    gc.collect()
    assert held() is None


async def test_a_request_that_waits_for_a_thread_is_answered_however_often_it_is_looked_after(monkeypatch):
    monkeypatch.setattr(timed_answer, "LOOK_SECONDS", 0.001)
    inbox, pending, release = Channel("request", 4), set(), threading.Event()
    threads = WorkerThreads("limelight-test")
    threads.put(lambda: release.wait(60))
    TimedAnswer(partial(encoded, None), inbox.sender, threads, 60.0, Overloaded, Overloaded, pending)
    for _ in range(5):
        await asyncio.sleep(0.001)
    release.set()
    with anyio.fail_after(60):
        assert await inbox.drain() == [Encoded((1,), None)]
    assert not pending
    await threads.close()
