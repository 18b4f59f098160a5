"""Work in the background of an engine: it outlives its caller and not the engine, and its faults are its own."""

import asyncio
import contextvars

import anyio
import pytest

from limelight.engine import EngineState
from limelight.errors import EngineNotRunning
from limelight.generation import SamplingParams
from limelight.testing import scripted_engine

pytestmark = pytest.mark.anyio


async def test_work_goes_on_when_the_task_that_began_it_has_ended():
    done = []

    async def work():
        await anyio.lowlevel.checkpoint()
        done.append(True)

    async with scripted_engine() as engine:

        async def begin():
            return engine.run_in_background(work, "work")

        task = await asyncio.create_task(begin())
        assert not task.done
        with anyio.fail_after(60):
            await task.wait()
        assert task.done
    assert done == [True]


async def test_what_fails_is_logged_by_its_name_and_harms_nobody(caplog):
    async def fail():
        raise ZeroDivisionError

    async with scripted_engine("fine") as engine:
        task = engine.run_in_background(fail, "the sweeping")
        with anyio.fail_after(60):
            await task.wait()
        assert (await engine.generate("hi", SamplingParams(max_tokens=None))).text == "fine"
        assert engine.state is EngineState.READY
    assert "the sweeping failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_work_is_cancelled_by_its_holder_or_when_the_engine_ends():
    cancelled = []

    async def endless(name):
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(name)

    async with scripted_engine() as engine:
        tasks = [engine.run_in_background(lambda name=name: endless(name), name) for name in ("one", "two", "three")]
        await anyio.lowlevel.checkpoint()
        tasks[1].cancel()
        tasks[1].cancel()
        with anyio.fail_after(60):
            await tasks[1].wait()
        assert cancelled == ["two"]
    assert sorted(cancelled) == ["one", "three", "two"]
    assert all(task.done for task in tasks)


async def test_work_cancelled_before_it_began_never_begins():
    async def work():
        await anyio.lowlevel.checkpoint()
        raise AssertionError

    async with scripted_engine() as engine:
        task = engine.run_in_background(work, "work")
        task.cancel()
        with anyio.fail_after(60):
            await task.wait()


async def test_drain_waits_for_it_and_says_whether_it_has_ended():
    gate = anyio.Event()
    async with scripted_engine() as engine:
        engine.run_in_background(gate.wait, "waiting")
        assert not await engine.drain(0.01)
        gate.set()
        assert await engine.drain(5)


async def test_without_a_running_engine_there_is_no_background():
    engine = scripted_engine()
    with pytest.raises(EngineNotRunning):
        engine.run_in_background(anyio.sleep_forever, "early")
    async with engine:
        pass
    with pytest.raises(EngineNotRunning):
        engine.run_in_background(anyio.sleep_forever, "late")


async def test_it_does_not_keep_the_context_of_its_caller():
    name = contextvars.ContextVar("name", default="nobody")
    seen = []

    async def look():
        seen.append(name.get())

    async with scripted_engine() as engine:
        name.set("caller")
        await engine.run_in_background(look, "looking").wait()
    assert seen == ["nobody"]


async def test_work_may_stop_its_engine_and_ends_with_it():
    seen = []

    async def work():
        async with anyio.create_task_group() as group:
            group.start_soon(stop)

    async def stop():
        try:
            await engine.stop()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    engine = scripted_engine()
    await engine.start()
    task = engine.run_in_background(work, "work")
    with anyio.fail_after(60):
        await task.wait()
        await engine.stop()
    assert seen == ["cancelled"]
    assert engine.state is EngineState.STOPPED
    assert engine.failure is None
