"""Faults and odd moments, over the scripted model: whatever breaks or is cancelled, every caller hears of it by a typed
error of its own, and nothing is left behind."""

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest

from limelight.actors.channel import ChannelOverflow
from limelight.engine import Engine, EngineState
from limelight.errors import (
    EngineFailed,
    EngineNotRunning,
    InvalidRequest,
    LimelightError,
    ModelError,
    RequestCancelled,
    StepFailure,
)
from limelight.generation import SamplingParams
from limelight.step import Sampled
from limelight.testing import ByteVocabulary, babble, scripted_engine, scripted_model
from limelight.testing.executor import ScriptedExecutor

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parent.parent
ENDLESS = SamplingParams(max_tokens=None, seed=1)
TWO = SamplingParams(max_tokens=2, seed=1)


class Panic(BaseException):
    """What native code raises past `except Exception`."""


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("limelight")}


def engine_with(executor: type[ScriptedExecutor] = ScriptedExecutor, *, vocabulary=None, **options):
    """A scripted engine whose parts misbehave."""
    load_scripted = scripted_model(babble)

    def load(config, report):
        model = load_scripted(config, report)
        return msgspec.structs.replace(
            model,
            executor=executor(babble, model.capacity, None, 0.0),
            vocabulary=vocabulary or model.vocabulary,
        )

    return Engine("scripted", loader=load, **options)


async def turns(number):
    for _ in range(number):
        await asyncio.sleep(0)


# ---- rows that break


class UnluckyExecutor(ScriptedExecutor):
    """The chunks that draw a sequence's third token with seed 13 give no finite logits."""

    def submit(self, step):
        wait = super().submit(step)
        unlucky = [
            chunk.sample
            and self._seats[chunk.seat].sampling.seed == 13
            and chunk.start + chunk.num_tokens == self._seats[chunk.seat].num_prompt_tokens + 2
            for chunk in step.chunks
        ]
        return lambda: tuple(
            Sampled((), failure="not finite") if lost else sampled
            for sampled, lost in zip(wait(), unlucky, strict=True)
        )


@pytest.mark.parametrize("pipeline_depth", [1, 2])
async def test_a_sequence_whose_rows_break_fails_its_own_request_in_the_middle_of_a_batch(pipeline_depth):
    async with engine_with(UnluckyExecutor, pipeline_depth=pipeline_depth) as engine:
        answers = {}

        async def ask(seed):
            try:
                answers[seed] = await engine.generate("a prompt of everybody", SamplingParams(max_tokens=9, seed=seed))
            except LimelightError as error:
                answers[seed] = error

        async with anyio.create_task_group() as group:
            for seed in (12, 13, 14):
                group.start_soon(ask, seed)
        assert isinstance(answers[13], StepFailure)
        assert "not finite" in answers[13].message
        assert [len(answers[seed].outputs[0].token_ids) for seed in (12, 14)] == [9, 9]
        statistics = engine.statistics()
        assert (statistics.num_requests, statistics.num_free_pages) == (0, statistics.num_pages)
        assert statistics.num_free_seats == statistics.num_seats


# ---- threads and native code that break


async def test_a_panic_in_the_tokenizer_fails_its_own_request_only():
    class Vocabulary(ByteVocabulary):
        def encode(self, text, *, add_special_tokens):
            if text == "panic":
                raise Panic("native code broke")
            return super().encode(text, add_special_tokens=add_special_tokens)

    async with engine_with(vocabulary=Vocabulary()) as engine:
        with anyio.fail_after(60):
            for _ in range(4):  # more than there are encoding threads
                with pytest.raises(LimelightError, match="could not be encoded: Panic"):
                    await engine.generate("panic", TWO)
            assert (await engine.generate("calm", TWO)).usage.completion_tokens == 2


async def test_a_model_that_fails_to_close_does_not_keep_the_engine_from_ending(caplog):
    class Executor(ScriptedExecutor):
        def close(self):
            raise ValueError("the device does not answer")

    engine = engine_with(Executor)
    await engine.start()
    with anyio.fail_after(60):
        await engine.stop()
    assert engine.state is EngineState.STOPPED
    assert "closing the model failed" in caplog.text


@pytest.mark.parametrize("error", [StopIteration("from next()"), Panic("native"), SystemExit(3), KeyboardInterrupt()])
async def test_whatever_a_loader_raises_ends_start_with_a_typed_error(error):
    def load(config, report):
        raise error

    with anyio.fail_after(60), pytest.raises(EngineFailed, match=f"loading stopped: {type(error).__name__}"):
        await Engine("x", loader=load).start()
    assert threads() == set()


@pytest.mark.parametrize("number", range(12))
async def test_an_engine_that_gets_no_thread_says_so_and_leaves_none(monkeypatch, tmp_path, number):
    start, started = threading.Thread.start, []

    def start_or_fail(thread):
        if len(started) == number:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    with anyio.fail_after(60), pytest.raises(RuntimeError, match="can't start new thread"):
        await scripted_engine(record_dir=str(tmp_path), loop_stall_seconds=60.0).start()
    for thread in started:
        thread.join(60)
    assert threads() == set()


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_model_is_closed_after_the_last_wait_for_its_steps(depth):
    events, gate, waiting = [], threading.Event(), threading.Event()

    class Executor(ScriptedExecutor):
        def submit(self, step):
            result = super().submit(step)

            def wait():
                waiting.set()
                gate.wait(10)
                events.append("waited")
                return result()

            return wait

        def close(self):
            events.append("closed")
            super().close()

    engine = engine_with(Executor, pipeline_depth=depth)
    async with engine, engine.stream("a", ENDLESS) as stream:
        await asyncio.to_thread(waiting.wait, 10)
        stopping = asyncio.create_task(engine.stop())
        with pytest.raises(EngineNotRunning, match="stopped"):
            await stream.result()
        assert events == []
        gate.set()
        await stopping
    assert events[-1] == "closed"
    assert events.count("waited") == len(events) - 1 >= 1


async def test_a_bug_in_a_request_actor_fails_everybody_with_a_typed_error():
    class Overflowing:
        def tell(self, message):
            raise ChannelOverflow("full")

    async with scripted_engine(babble, step_seconds=0.001) as engine, engine.stream("other", ENDLESS) as other:
        async with engine.stream("a", ENDLESS) as stream:
            await anext(stream)
            stream._actor._scheduler = Overflowing()
        with anyio.fail_after(60), pytest.raises(EngineFailed, match="ChannelOverflow"):
            await other.result()
        assert engine.state is EngineState.FAILED


async def test_cancelling_every_task_of_the_engine_ends_it_and_its_requests():
    before = asyncio.all_tasks()
    engine = scripted_engine(babble, step_seconds=0.001)
    async with engine, engine.stream("a", ENDLESS) as stream:
        await anext(stream)
        actors = [task for task in asyncio.all_tasks() - before if "supervise" in repr(task.get_coro())]
        (actors or list(asyncio.all_tasks() - before))[0].cancel()
        with anyio.fail_after(60), pytest.raises((EngineNotRunning, RequestCancelled)):
            await stream.result()
    assert asyncio.all_tasks() == before


# ---- errors


async def test_an_error_that_many_meet_is_an_object_of_its_own_for_each():
    def before_step(step):
        raise EngineFailed("the device fell off the bus")

    async def failed(engine, prompt):
        with pytest.raises(EngineFailed) as caught:
            await engine.generate(prompt, ENDLESS)
        return caught.value

    async with scripted_engine(babble, before_step=before_step) as engine:
        errors = await asyncio.gather(*(failed(engine, str(number)) for number in range(5)))
        errors += [await failed(engine, "late") for _ in range(50)]
        assert len(set(map(id, [*errors, engine.failure]))) == 56
        assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors[5:]}) == 1, "nothing piles up"
        assert all(error.__cause__ is engine.failure.__cause__ is not None for error in errors)


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("x", {"priority": "high"}, "priority"),
        ("x", {"priority": None}, "priority"),
        ("x", {"cache_salt": ["salt"]}, "cache_salt"),
        ([1.5], {}, "prompt"),
        ([True], {}, "prompt"),
        (["a"], {}, "prompt"),
    ],
)
async def test_a_value_of_a_wrong_type_is_refused_before_it_meets_the_requests_of_others(prompt, options, field):
    long = SamplingParams(max_tokens=200)
    async with scripted_engine(babble, max_num_seqs=1) as engine, engine.stream("other", long) as other:
        with pytest.raises(InvalidRequest) as refusal:
            await engine.generate(prompt, TWO, **options)
        assert (await other.result()).usage.completion_tokens == 200
    assert refusal.value.param == field


# ---- readers


async def test_a_stream_that_has_been_left_is_not_waited_for():
    async with scripted_engine(babble, step_seconds=0.005) as engine:
        async with engine.stream("a", ENDLESS) as stream:
            await anext(stream)
            reader = asyncio.create_task(stream.result())
            await turns(2)
        for reading in (reader, stream.result(), anext(stream)):
            with anyio.fail_after(60), pytest.raises(RequestCancelled):
                await reading


async def test_a_finished_request_can_be_read_after_its_block():
    async with scripted_engine("done") as engine:
        async with engine.stream("a", ENDLESS) as stream:
            while engine.statistics().num_requests:
                await asyncio.sleep(0)
        assert "".join([delta.text async for delta in stream]) == "done"
        assert (await stream.result()).text == "done"


async def test_a_second_reader_at_the_same_time_is_told_so():
    gate = threading.Event()
    blocked = scripted_engine(babble, before_step=lambda step: gate.wait(10))
    async with blocked as engine, engine.stream("a", TWO) as stream:
        first = asyncio.create_task(stream.result())
        await turns(3)
        with pytest.raises(RuntimeError, match="one reader"):
            await stream.next_deltas()
        gate.set()
        assert (await first).usage.completion_tokens == 2


async def test_prompts_that_were_given_up_while_queued_are_not_encoded():
    gate, encoded = threading.Event(), []

    class Vocabulary(ByteVocabulary):
        def encode(self, text, *, add_special_tokens):
            gate.wait(10)
            encoded.append(text)
            return super().encode(text, add_special_tokens=add_special_tokens)

    async with engine_with(vocabulary=Vocabulary()) as engine:
        for _ in range(100):
            async with engine.stream("given up", TWO):
                await turns(5)
        await turns(5)
        gate.set()
        await engine.generate("wanted", TWO)
    assert len(encoded) <= 3, "one for each encoding thread that had begun, and the wanted one"


# ---- life


async def test_requests_that_come_while_the_engine_stops_are_refused_with_a_typed_error():
    engine = scripted_engine(babble, step_seconds=0.005)
    await engine.start()
    errors = []

    async def come_again():
        while engine.state is not EngineState.STOPPED:
            try:
                await engine.generate("a", ENDLESS)
            except EngineNotRunning as error:
                errors.append(error)
            await asyncio.sleep(0)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(come_again)
            await turns(10)
            await engine.stop()
    assert len(errors) > 5


@pytest.mark.parametrize("delay", range(8))
async def test_cancelling_start_in_the_moment_of_a_failure_loses_no_error(delay):
    loader_runs, gate = threading.Event(), threading.Event()

    def load(config, report):
        loader_runs.set()
        gate.wait(10)
        raise ModelError("no such model")

    starting = asyncio.create_task(Engine("x", loader=load).start())
    await asyncio.to_thread(loader_runs.wait, 10)
    gate.set()
    await turns(delay)
    starting.cancel()
    with pytest.raises((asyncio.CancelledError, ModelError)):
        await starting
    del starting
    gc.collect()  # would report an exception that was never retrieved, as an error of this test
    assert threads() == set()


@pytest.mark.parametrize("turns_before", range(1, 12, 2))
async def test_cancelling_start_at_any_moment_leaves_nothing(turns_before):
    before = asyncio.all_tasks()
    engine = scripted_engine(babble)
    starting = asyncio.create_task(engine.start())
    await turns(turns_before)
    starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        assert engine.state is EngineState.STOPPED
    await engine.stop()
    assert engine.state is EngineState.STOPPED
    assert asyncio.all_tasks() == before
    assert threads() == set()


async def test_a_cancelled_stop_still_ends_the_engine():
    gate = threading.Event()
    engine = scripted_engine(babble, before_step=lambda step: gate.wait(10))
    await engine.start()
    async with engine.stream("a", ENDLESS):
        await turns(20)
        stopping = asyncio.create_task(engine.stop())
        await turns(3)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
    gate.set()
    with anyio.fail_after(60):
        await engine.stop()
    assert engine.state is EngineState.STOPPED
    assert threads() == set()


def test_an_engine_that_outlives_its_loop_is_stopped_and_says_so():
    engine = scripted_engine(babble)
    asyncio.run(engine.start())
    assert engine.state is EngineState.STOPPED
    assert threads() == set()
    asyncio.run(engine.stop())


async def test_stop_and_drain_from_another_loop_are_refused():
    async with scripted_engine(babble) as engine:
        for call in (engine.stop, partial(engine.drain, 1)):
            with pytest.raises(EngineNotRunning, match="another event loop"):
                await asyncio.to_thread(asyncio.run, call())
        assert (await engine.generate("a", TWO)).usage.completion_tokens == 2
        with pytest.raises(EngineNotRunning, match="another event loop"):
            await asyncio.to_thread(engine.statistics)


async def test_the_engine_keeps_nobodys_context():
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class Vocabulary(ByteVocabulary):
        def token_bytes(self, token_id):
            seen.append(variable.get())
            return super().token_bytes(token_id)

    variable.set("of the one who starts")
    async with engine_with(vocabulary=Vocabulary()) as engine:
        variable.set("of the one who asks")
        await engine.generate("a", TWO)
    assert set(seen) == {"unset"}


SHUTDOWNS = """
import asyncio, gc, os, signal, sys, threading
from limelight.generation import SamplingParams
from limelight.testing import scripted_engine

ENDLESS = SamplingParams(max_tokens=None)
kept = []

async def left_open():
    engine = scripted_engine(step_seconds=0.002)
    await engine.start()
    for number in range(6):
        entered = engine.stream("x", ENDLESS)
        kept.append((entered, await entered.__aenter__()))
        if number == 3:
            await anext(kept[0][1])

async def dropped():
    async with scripted_engine(step_seconds=0.002) as engine:
        await engine.stream("x", ENDLESS).__aenter__()
        gc.collect()
        while engine.statistics().num_requests:
            await asyncio.sleep(0)

async def readers_left():
    engine = scripted_engine(step_seconds=0.002)
    await engine.start()
    kept.extend(asyncio.create_task(engine.generate(str(number), ENDLESS)) for number in range(6))
    await asyncio.sleep(0.02)

async def interrupted():
    async with scripted_engine(step_seconds=0.002) as engine:
        async with engine.stream("x", ENDLESS) as stream:
            async for delta in stream:
                os.kill(os.getpid(), signal.SIGINT)

async def interrupted_while_loading():
    gate = threading.Event()
    engine = scripted_engine(before_step=None)
    load = engine._load
    engine._load = lambda *arguments: (gate.wait(0.1), load(*arguments))[1]
    os.kill(os.getpid(), signal.SIGINT)
    await engine.start()

def new_loop():
    if sys.argv[1] == "uvloop":
        import uvloop
        return uvloop.new_event_loop()
    loop = asyncio.new_event_loop()
    if sys.argv[1] == "eager":
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop

for main in (left_open, dropped, readers_left, interrupted, interrupted_while_loading):
    try:
        with asyncio.Runner(loop_factory=new_loop, debug=True) as runner:
            runner.get_loop().slow_callback_duration = 60
            runner.run(main())
    except KeyboardInterrupt:
        assert main.__name__.startswith("interrupted"), main
    else:
        assert not main.__name__.startswith("interrupted"), main
    kept.clear()
    gc.collect()
    assert threading.enumerate() == [threading.main_thread()], (main, threading.enumerate())
"""


@pytest.mark.parametrize(
    "loop",
    [
        "asyncio",
        "uvloop",
        pytest.param("eager", marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="new in 3.12")),
    ],
)
def test_a_loop_may_shut_down_at_any_moment_without_a_warning_or_a_thread_left(loop):
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", SHUTDOWNS, loop]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_opening_and_closing_many_times_leaves_no_descriptor_and_no_thread():
    def descriptors():
        return sorted(path.name for path in Path("/proc/self/fd").iterdir())

    before = len(descriptors()), threading.active_count()
    for _ in range(30):
        async with scripted_engine(babble) as engine:
            await engine.generate("a", TWO)
    assert (len(descriptors()), threading.active_count()) == before


async def test_a_stop_while_loading_ends_the_load_at_its_next_report():
    reports, stopping = [], threading.Event()

    def load(config, report):
        while True:
            report("loading", len(reports) / 1000)
            reports.append(True)
            stopping.wait(0.001)

    engine = Engine("endless", loader=load)
    async with anyio.create_task_group() as group:

        async def start():
            with pytest.raises(EngineNotRunning, match="stopped while it was loading"):
                await engine.start()

        group.start_soon(start)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            await engine.stop()
    assert engine.state is EngineState.STOPPED
