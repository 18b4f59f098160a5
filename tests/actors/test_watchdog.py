"""What stands still is named, keeps new work away, and in the end is given up."""

import asyncio
import threading
import time

import anyio
import pytest

from limelight.engine import EngineState
from limelight.errors import EngineFailed, StepFailure
from limelight.generation import SamplingParams
from limelight.testing import ByteVocabulary, scripted_engine
from tests.test_engine_faults import engine_with

pytestmark = pytest.mark.anyio

ENDLESS = SamplingParams(max_tokens=None, seed=1)
TWO = SamplingParams(max_tokens=2, seed=1)


class Gate:
    """Holds steps up on their thread."""

    def __init__(self):
        self.entered = threading.Event()
        self.open = threading.Event()

    def hold_this_step(self, step):
        self.entered.set()
        self.open.wait(60)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def look(engine, seconds_later):
    engine._system._watchdog.look(time.monotonic() + seconds_later)


async def entered(event):
    assert await asyncio.to_thread(event.wait, 60)


async def test_a_step_that_takes_long_is_named_once_and_keeps_new_work_away(gate, caplog):
    async with (
        scripted_engine(before_step=gate.hold_this_step) as engine,
        engine.stream("a", TWO, request_id="slow") as stream,
    ):
        await entered(gate.entered)
        look(engine, 1)
        assert engine.health().is_ready
        look(engine, 200)
        look(engine, 201)
        health = engine.health()
        assert not health.is_ready
        assert "step 0 (0 decodes, 2 prompt tokens) has been running for 201 s" in health.reasons[0]
        assert caplog.text.count("requests slow") == 1
        assert "hold_this_step" in caplog.text, "the stack of the thread"
        assert engine.telemetry.counters.num_stuck_steps == 1
        gate.open.set()
        assert (await stream.result()).usage.completion_tokens == 2
        look(engine, 0)
        assert engine.health().is_ready


async def test_a_step_that_never_ends_fails_everybody_and_its_thread_is_left_behind(gate, caplog):
    async with scripted_engine(before_step=gate.hold_this_step) as engine:
        async with engine.stream("a", TWO) as first, engine.stream("b", TWO) as second:
            await entered(gate.entered)
            look(engine, 601)
            assert engine.state is EngineState.READY, "the result may be on its way: the loop itself may have been late"
            look(engine, 601)
            assert engine.state is EngineState.FAILED
            for stream in (first, second):
                with anyio.fail_after(60), pytest.raises(EngineFailed, match=r"step 0 .* has not ended for 601 s"):
                    await stream.result()
        with anyio.fail_after(60):
            await engine.stop()
        assert engine.left_behind == ("model runner",)
        assert "left behind" in caplog.text
        assert "has not ended for 601 s" in engine.health().reasons[0]


async def test_a_step_may_take_ten_times_as_long_as_the_longest_before(gate):
    async with scripted_engine(before_step=gate.hold_this_step) as engine, engine.stream("a", TWO):
        await entered(gate.entered)
        engine._system.parts.ledger.longest_step_seconds = 100.0
        for _ in range(3):
            look(engine, 990)
        assert engine.failure is None
        gate.open.set()


async def test_a_timeout_of_0_waits_for_ever(gate):
    engine = scripted_engine(before_step=gate.hold_this_step, step_timeout_seconds=0)
    async with engine, engine.stream("a", TWO):
        await entered(gate.entered)
        for _ in range(3):
            look(engine, 1e6)
        assert engine.failure is None
        gate.open.set()


async def test_a_stop_waits_for_a_thread_no_longer_than_it_is_told(gate):
    engine = scripted_engine(before_step=gate.hold_this_step)
    async with engine, engine.stream("a", TWO):
        await entered(gate.entered)
        waiting = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        with anyio.fail_after(60):
            await engine.stop(timeout_seconds=0.01)  # also ends the wait of who was more patient
            await waiting
        assert engine.left_behind == ("model runner",)
        assert engine.state is EngineState.STOPPED


async def test_calls_on_threads_are_named_and_when_none_is_left_no_work_should_come(gate, caplog):
    class Vocabulary(ByteVocabulary):
        def encode(self, text, *, add_special_tokens):
            if text == "tarry":
                gate.hold_this_step(None)
            return super().encode(text, add_special_tokens=add_special_tokens)

    async with engine_with(vocabulary=Vocabulary()) as engine, engine.stream("tarry", TWO):
        await entered(gate.entered)
        look(engine, 31)
        assert engine.health().is_ready, "one thread is left"
        assert "a call on thread limelight-encode-" in caplog.text
        assert "hold_this_step" in caplog.text
        gate.entered.clear()
        async with engine.stream("tarry", TWO):
            await entered(gate.entered)
            look(engine, 32)
            assert engine.health().reasons[0].startswith("tokenizer: all 2 threads have been busy")
            assert engine.telemetry.counters.num_stuck_calls == 2
            gate.open.set()


async def test_steps_that_fail_in_a_row_keep_work_away_for_a_while():
    is_broken = True

    def before_step(step):
        if is_broken:
            raise ValueError("the kernel does not start")

    async with scripted_engine(before_step=before_step) as engine:
        for _ in range(3):
            look(engine, 0)
            assert engine.health().is_ready
            with pytest.raises(StepFailure):
                await engine.generate("a", TWO)
        look(engine, 0)
        assert engine.health().reasons == ("the last 3 steps have failed",)
        look(engine, 31)
        assert engine.health().is_ready
        is_broken = False
        await engine.generate("a", TWO)
        look(engine, 0)
        assert engine.health().is_ready


async def test_work_for_which_no_step_is_planned_is_told(monkeypatch):
    async with scripted_engine() as engine:
        monkeypatch.setattr(engine._system.parts.planner, "plan", lambda: None)
        async with engine.stream("a", TWO):
            while not engine.statistics().num_waiting:
                await asyncio.sleep(0)
            look(engine, 0)
            assert engine.health().is_ready
            look(engine, 11)
            assert engine.health().reasons == ("there is work, and no step has been planned for 11 s",)


async def test_what_holds_the_loop_is_told_while_it_does(caplog):
    async with scripted_engine(loop_stall_seconds=0.1) as engine:
        counters = engine.telemetry.counters

        async def hold_the_loop():
            began = time.monotonic()
            while not counters.num_loop_stalls and time.monotonic() - began < 60:
                time.sleep(0.01)  # noqa: ASYNC251 - what must not be done

        await asyncio.create_task(hold_the_loop(), name="a-clumsy-task")
        assert counters.num_loop_stalls == 1
        assert "in task a-clumsy-task" in caplog.text
        assert "in hold_the_loop" in caplog.text
        with anyio.fail_after(60):
            while "turns again" not in caplog.text:
                await asyncio.sleep(0.05)
    assert "limelight-loop-watch" not in {thread.name for thread in threading.enumerate()}


async def test_before_a_drain_load_balancers_get_time_to_notice():
    async with scripted_engine() as engine:
        draining = asyncio.create_task(engine.drain(60, notice_seconds=1000))
        await asyncio.sleep(0)
        assert engine.health().reasons == ("the server is about to stop",)
        assert (await engine.generate("a", TWO)).usage.completion_tokens == 2
        draining.cancel()
        assert await engine.drain(60)
        assert engine.state is EngineState.DRAINING
