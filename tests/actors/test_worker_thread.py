import asyncio
import threading
from functools import partial

import pytest

from limelight.actors.worker_thread import WorkerThreads, post

pytestmark = pytest.mark.anyio


async def test_one_thread_runs_jobs_in_order_under_its_name():
    loop, seen = asyncio.get_running_loop(), []
    done = loop.create_future()
    threads = WorkerThreads("limelight-test")
    for number in range(20):
        threads.put(partial(seen.append, number))
    threads.put(lambda: post(loop, done.set_result, threading.current_thread().name))
    assert await done == "limelight-test-0"
    assert seen == list(range(20))
    await threads.close()


async def test_close_drops_queued_jobs_runs_the_last_one_and_leaves_no_thread():
    before = threading.active_count()
    threads = WorkerThreads("limelight-test")
    started, release, seen = threading.Event(), threading.Event(), []

    def block():
        started.set()
        release.wait(10)
        seen.append("running job")

    threads.put(block)
    started.wait(10)
    threads.put(partial(seen.append, "queued job"))
    async with asyncio.TaskGroup() as group:
        group.create_task(threads.close(last=partial(seen.append, "last job")))
        await asyncio.sleep(0)
        release.set()
    assert seen == ["running job", "last job"]
    assert threading.active_count() == before
    await threads.close(last=partial(seen.append, "never"))
    assert seen == ["running job", "last job"]


def test_posting_to_a_closed_loop_is_dropped():
    loop = asyncio.new_event_loop()
    loop.close()
    post(loop, print, "nobody hears this")
