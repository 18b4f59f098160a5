"""A simulation through the whole engine: random requests, cancels, step failures, drains and stops over tiny pools.

Each request ends exactly once, with a typed error or with the tokens that it has alone; every page and seat comes back.
"""

import asyncio
import random
import threading

import anyio
import msgspec
import pytest

from limelight.engine import Engine
from limelight.errors import EngineNotRunning, Overloaded, StepFailure
from limelight.generation import SamplingParams
from limelight.step import Step
from limelight.testing import babble, scripted_engine, scripted_model
from limelight.testing.executor import ScriptedExecutor

pytestmark = pytest.mark.anyio

NUM_SCHEDULES = 40  # 500 and more have been run; a failure names its seed

PROMPTS = ("", "shared beginning of a page or two, ", "shared beginning of a page or two, and then some more of it, ")


def cases():
    chance = random.Random(0)
    return [
        (
            chance.choice(PROMPTS) + str(number),
            SamplingParams(
                n=chance.choice((1, 1, 1, 2, 3)),
                seed=number,
                max_tokens=chance.choice((1, 9, 40, 40)),
                stop=chance.choice((None, None, "a", ["zq", "xy"])),
                min_tokens=chance.choice((0, 0, 1)),
                logprobs=chance.choice((None, None, 2)),
            ),
        )
        for number in range(32)
    ]


CASES = cases()


@pytest.fixture(scope="module")
def alone():
    """What each case gives when it has an engine with plenty of pages to itself."""

    async def generate_all():
        async with scripted_engine(babble, num_pages=2000) as engine:
            return [(await engine.generate(*case)) for case in CASES]

    return asyncio.run(generate_all())


class FailingExecutor(ScriptedExecutor):
    """Fails one step in ten: in `submit`, or in the wait for its result."""

    def __init__(self, seed, failures, *arguments):
        super().__init__(*arguments)
        self._chance = random.Random(seed)
        self._failures = failures

    def submit(self, step: Step):
        wait = super().submit(step)
        draw = self._chance.random() if self._failures else 1.0
        if draw < 0.05:
            raise ValueError("failed when submitted")
        return wait if draw > 0.1 else self._fail

    def _fail(self):
        raise ValueError("failed while it ran")


def failing_engine(seed, failures, *, num_pages, **options):
    load_scripted = scripted_model(babble, num_pages=num_pages)

    def load(config, report):
        model = load_scripted(config, report)
        executor = FailingExecutor(seed, failures, babble, model.capacity, None, 0.0)
        return msgspec.structs.replace(model, executor=executor)

    return Engine("scripted", loader=load, **options)


async def turns(number):
    for _ in range(number):
        await asyncio.sleep(0)


async def client(engine, alone, chance, ended):
    """One request, ended in one of many ways; adds to `ended` exactly one word for it."""
    case = chance.randrange(len(CASES))
    patience = chance.choice((None, None, None, 0, 1, 3, 10))
    whole = alone[case]
    read = [""] * len(whole.outputs)
    try:
        async with engine.stream(*CASES[case], priority=chance.randrange(3)) as stream:
            while patience is None or patience > 0:
                deltas = await stream.next_deltas()
                for delta in deltas:
                    read[delta.index] += delta.text
                if not deltas:
                    assert await stream.result() == msgspec.structs.replace(
                        whole, request_id=stream.request_id, usage=(await stream.result()).usage
                    )
                    ended.append("whole")
                    return
                patience = None if patience is None else patience - 1
            ended.append("left")
    except (StepFailure, Overloaded, EngineNotRunning) as error:
        ended.append(type(error).__name__)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    finally:
        for output, text in zip(whole.outputs, read, strict=True):
            assert output.text.startswith(text), "streamed text is a beginning of the text alone"


async def simulate(seed, depth, alone):
    chance = random.Random(seed)
    crowded = seed % 4 == 0  # many at once, who stay: sequences are preempted
    tasks_before = asyncio.all_tasks()
    engine = failing_engine(
        seed,
        chance.random() < 0.5 and not crowded,
        num_pages=chance.choice((15, 16, 20, 40)),
        max_num_seqs=8 if crowded else chance.choice((1, 3, 8)),
        max_num_batched_tokens=chance.choice((8, 16, 64)),
        max_num_requests=50 if crowded else chance.choice((4, 50)),
        max_model_len=200,
        page_size=8,
        pipeline_depth=depth,
        enable_prefix_caching=chance.random() < 0.8,
    )
    ended, clients, preempted = [], [], False
    with anyio.fail_after(60):
        async with engine:
            for _ in range(20 if crowded else chance.randrange(5, 25)):
                clients.append(asyncio.create_task(client(engine, alone, chance, ended)))
                await turns(0 if crowded else chance.choice((0, 0, 1, 2, 20)))
                if chance.random() < 0.2 and not crowded:
                    chance.choice(clients).cancel()
                engine._system._parts.planner.check()
            end = "wait" if crowded else chance.choice(("wait", "wait", "drain", "stop"))
            if end == "drain":
                await engine.drain(0.01)
            if end == "wait":
                await asyncio.wait(clients)
                while engine.statistics().num_requests or engine.statistics().num_running:
                    await asyncio.sleep(0)
                numbers = engine.statistics()
                preempted = numbers.num_preemptions > 0
                assert (numbers.num_free_pages, numbers.num_free_seats) == (numbers.num_pages, numbers.num_seats)
                engine._system._parts.planner.check()
        results = await asyncio.gather(*clients, return_exceptions=True)
    assert [error for error in results if isinstance(error, Exception)] == []
    # A client that was cancelled before its first turn never began.
    assert len(clients) - sum(isinstance(error, BaseException) for error in results) <= len(ended) <= len(clients)
    assert asyncio.all_tasks() == tasks_before
    return {*ended, *(["preempted"] if preempted else [])}


@pytest.mark.parametrize("depth", [1, 2])
async def test_in_any_mix_of_requests_cancels_failures_and_stops_each_ends_once_with_the_tokens_it_has_alone(
    alone, depth
):
    threads, ways = set(threading.enumerate()), set()
    for seed in range(NUM_SCHEDULES):
        try:
            ways.update(await simulate(seed, depth, alone))
        except BaseException as error:
            error.add_note(f"seed {seed}, depth {depth}")
            raise
    assert {"whole", "left", "cancelled", "StepFailure", "EngineNotRunning", "Overloaded", "preempted"} <= ways
    assert set(threading.enumerate()) == threads
