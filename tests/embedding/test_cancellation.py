"""Cancelled at 200 random points of an engine's life and of its requests', in every way that asyncio and anyio have:
pages come back, the event loop has nothing to complain of, and the engine goes on or ends."""

import asyncio
import contextlib
import gc
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import anyio
import pytest

from limelight import Engine, SamplingParams, StructuredOutputsParams
from limelight.engine import EngineState
from limelight.telemetry.request_view import RequestView
from limelight.telemetry.timeline import Ending, Phase
from limelight.testing import scripted_engine

pytestmark = pytest.mark.anyio

Moment = Coroutine[Any, Any, None]
"""Ends when it is time to cancel."""
MOMENTS = ["start", "requests", "drain", "stop"]
SHORT = SamplingParams(max_tokens=3, seed=1)
LONG = SamplingParams(max_tokens=60, seed=1)


async def turns(number: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def by_task(work: Coroutine[Any, Any, None], at: Moment) -> bool:
    """`Task.cancel`; returns whether it was in time."""
    task = asyncio.create_task(work)
    await at
    in_time = task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return in_time


async def by_timeout(work: Coroutine[Any, Any, None], at: Moment) -> bool:
    """`asyncio.timeout`, made to expire at a turn and not at a time."""
    entered: asyncio.Future[asyncio.Timeout] = asyncio.get_running_loop().create_future()

    async def bounded() -> None:
        async with asyncio.timeout(None) as timeout:
            entered.set_result(timeout)
            await work

    task = asyncio.create_task(bounded())
    timeout = await entered
    await at
    if not task.done():
        timeout.reschedule(asyncio.get_running_loop().time())
    try:
        await task
    except TimeoutError:
        return True
    return False


async def by_scope(work: Coroutine[Any, Any, None], at: Moment) -> bool:
    """A cancel scope of anyio around it."""
    ended = False

    async def run() -> None:
        nonlocal ended
        await work
        ended = True

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await at
        group.cancel_scope.cancel()
    return not ended


WAYS = [by_task, by_timeout, by_scope]


@contextlib.asynccontextmanager
async def nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task is left, none was destroyed or its error never retrieved, no thread of ours lives on."""
    tasks = asyncio.all_tasks()
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    try:
        yield
        gc.collect()
        await turns(3)
    finally:
        loop.set_exception_handler(None)
    assert complaints == []
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
    assert asyncio.all_tasks() == tasks
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("limelight")] == []


def idle(engine: Engine) -> bool:
    now = engine.statistics()
    return (now.num_requests, now.num_running, now.num_free_pages) == (0, 0, now.num_pages)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await asyncio.sleep(0)


async def ask(engine: Engine, number: int, prompt: str) -> None:
    """One of four kinds of request, which would go on for a while."""
    match number % 4:
        case 0:
            await engine.generate(prompt, SamplingParams(max_tokens=40, n=2), request_id=str(number))
        case 1:
            async with engine.stream_chat(
                [{"role": "user", "content": prompt}], LONG, request_id=str(number)
            ) as stream:
                async for _ in stream:
                    pass
        case 2:
            bounded = StructuredOutputsParams(regex="[a-z]{40}")
            sampling = SamplingParams(max_tokens=50, structured_outputs=bounded)
            await engine.generate(prompt, sampling, request_id=str(number))
        case _:
            async with engine.stream(prompt, LONG, request_id=str(number)) as stream:
                while await stream.next_deltas():
                    pass


def has_come_to(view: RequestView | None, phase: Phase) -> bool:
    """Whether a request is there, or further."""
    order = list(Phase)
    return view is not None and order.index(view.phase) >= order.index(phase)


def how_far(view: RequestView) -> str:
    """What the request was at when it ended."""
    if view.output_tokens:
        return "decode"
    if view.prompt_tokens_done:
        return "prefill"
    return "queue" if view.prompt_tokens else "encode"


async def test_requests_cancelled_at_200_points_give_all_pages_back_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chance = random.Random(8)
    async with nothing_to_complain_of(caplog):
        async with scripted_engine(num_pages=60, max_num_seqs=4, max_num_batched_tokens=48) as engine:

            async def one(number: int) -> None:
                prompt = "a beginning that they share " * chance.randrange(1, 8) + str(number)
                phase, later = chance.choice(list(Phase)[:-1]), chance.randrange(6)

                async def moment() -> None:
                    await until(lambda: has_come_to(engine.request_view(str(number)), phase))
                    await turns(later)

                await chance.choice(WAYS)(ask(engine, number, prompt), moment())

            for first in range(0, 200, 10):
                async with anyio.create_task_group() as group:
                    for number in range(first, first + 10):
                        group.start_soon(one, number)
                await until(lambda: idle(engine))
            aborted = [view for view in engine.requests(recent=200) if view.ending is Ending.ABORTED]
            assert (await engine.generate("still here", SHORT)).usage.completion_tokens == 3
        assert engine.state is EngineState.STOPPED
    assert {how_far(view) for view in aborted} == {"encode", "queue", "prefill", "decode"}


async def test_an_engine_cancelled_at_200_points_of_its_life_ends_and_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chance = random.Random(9)
    cancelled_in = set()

    async def life(moments: list[str]) -> None:
        engine = scripted_engine(num_pages=40, max_num_seqs=2, max_num_batched_tokens=32)
        engines.append(engine)
        moments.append("start")
        try:
            await engine.start()
            moments.append("requests")
            async with anyio.create_task_group() as group:
                group.start_soon(engine.generate, "one", SHORT)
                group.start_soon(engine.generate, "two " * 20, SHORT)
                group.start_soon(engine.chat, [{"role": "user", "content": "three"}], SHORT)
            late = asyncio.ensure_future(engine.generate("late", SHORT))
            try:
                moments.append("drain")
                await engine.drain(60)
            finally:
                late.cancel()
                await asyncio.wait([late])
            moments.append("stop")
        finally:
            await engine.stop()

    engines: list[Engine] = []
    async with nothing_to_complain_of(caplog):
        for _ in range(200):
            moments: list[str] = []
            last, later = chance.choice(MOMENTS), chance.randrange(8)

            async def moment(moments: list[str] = moments, last: str = last, later: int = later) -> None:
                await until(lambda: last in moments)
                await turns(later)

            if await chance.choice(WAYS)(life(moments), moment()):
                cancelled_in.update(moments[-1:])
            for engine in engines:
                await until(lambda engine=engine: engine.state in (EngineState.NEW, EngineState.STOPPED))
                assert engine.failure is None
            engines.clear()
            await until(lambda: not any(task.get_name() == "limelight-engine" for task in asyncio.all_tasks()))
    assert cancelled_in == set(MOMENTS)
