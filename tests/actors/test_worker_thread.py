import asyncio
import gc
import threading
import weakref
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


async def test_close_returns_after_a_job_that_raised(monkeypatch):
    begun, seen = threading.Event(), []
    monkeypatch.setattr(threading, "excepthook", lambda broken: seen.append(broken.exc_type))

    def break_promise():
        begun.set()
        raise ValueError("a job handles its own exceptions, but this one does not")

    threads = WorkerThreads("limelight-test")
    threads.put(break_promise)
    begun.wait(10)
    async with asyncio.timeout(5):
        await threads.close()
    assert seen == [ValueError]


async def test_threads_end_by_themselves_after_a_wait_that_was_cancelled():
    before = threading.active_count()
    release, seen = threading.Event(), []
    threads = WorkerThreads("limelight-test", 2)
    for _ in range(2):
        threads.put(partial(release.wait, 10))
    closing = asyncio.create_task(threads.close(last=partial(seen.append, "last job")))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    release.set()
    async with asyncio.timeout(5):
        await threads.close()
    assert seen == ["last job"]
    assert threading.active_count() == before


async def test_end_runs_what_is_queued():
    seen = []
    threads = WorkerThreads("limelight-test")
    for number in range(5):
        threads.put(partial(seen.append, number))
    threads.end(partial(seen.append, "last job"))
    threads.end(partial(seen.append, "never"))
    await threads.close()
    assert seen == [0, 1, 2, 3, 4, "last job"]


async def test_a_call_that_nobody_waits_for_any_more_is_not_begun_and_holds_nothing():
    class Large:
        pass

    release, called = threading.Event(), []
    threads = WorkerThreads("limelight-test")
    threads.put(lambda: release.wait(10))
    large = Large()
    held = weakref.ref(large)
    abandoned, wanted = threads.call(partial(called.append, large)), threads.call(partial(called.append, "wanted"))
    del large
    abandoned.cancel()
    await asyncio.sleep(0)
    gc.collect()
    assert held() is None
    release.set()
    await wanted
    assert called == ["wanted"]
    await threads.close()
