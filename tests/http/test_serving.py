"""Where the work on a body is done: on the event loop if it is short, else on one of a few threads."""

import threading

import anyio
import pytest

from limelight.errors import InvalidRequest
from limelight.http.serving import MAX_BYTES_ON_LOOP, NUM_DECODING_THREADS, Serving
from limelight.http.settings import HttpSettings
from limelight.testing import scripted_engine

pytestmark = pytest.mark.anyio


class Received:
    """A request whose body has been read."""

    def __init__(self, num_bytes):
        self._body = bytes(num_bytes)

    async def body(self):
        return self._body


LONG = Received(MAX_BYTES_ON_LOOP + 1)


@pytest.fixture
def serving():
    return Serving(scripted_engine(), HttpSettings())


async def test_long_bodies_alone_are_worked_on_by_threads(serving):
    here = threading.get_ident()
    assert await serving.work(Received(MAX_BYTES_ON_LOOP), threading.get_ident) == here
    assert await serving.work(LONG, threading.get_ident) != here


async def test_refusals_come_from_threads_as_they_are(serving):
    refusal = InvalidRequest("no", param="messages")

    def refuse():
        raise refusal

    with pytest.raises(InvalidRequest) as raised:
        await serving.work(LONG, refuse)
    assert raised.value is refusal


async def test_a_few_threads_work_at_once_and_the_loop_goes_on(serving):
    release, begun = threading.Event(), []

    def wait():
        begun.append(threading.get_ident())
        assert release.wait(30)

    async with anyio.create_task_group() as tasks:
        for _ in range(NUM_DECODING_THREADS + 3):
            tasks.start_soon(serving.work, LONG, wait)
        with anyio.fail_after(30):
            while len(begun) < NUM_DECODING_THREADS:
                await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        assert await serving.work(Received(1), lambda: 5) == 5
        assert len(begun) == NUM_DECODING_THREADS
        release.set()
    assert len(begun) == NUM_DECODING_THREADS + 3
