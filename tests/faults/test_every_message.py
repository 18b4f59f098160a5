"""A fault at every message of the protocol, over the scripted model: who is affected hears of it by a typed error, the
others get the same tokens as without it, and everything comes back. A fault that nobody can survive fails the engine.
"""

import asyncio
import json
import typing

import anyio
import pytest

from limelight.actors import messages
from limelight.actors.choice import Choice
from limelight.actors.delivery import Deliveries
from limelight.actors.request import RequestActor
from limelight.actors.scheduler import FATAL_FAILURES
from limelight.engine import EngineState
from limelight.errors import EngineFailed, InvalidRequest, LimelightError, RequestCancelled, StepFailure
from limelight.generation import SamplingParams
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.constraints.constraint import Constraint
from limelight.structured_outputs import StructuredOutputsParams
from limelight.testing import ByteVocabulary, PlainChatFormat, scripted_engine
from limelight.testing.adapters import ScriptedAdapters
from limelight.testing.executor import ScriptedExecutor
from tests.test_engine_faults import Panic, engine_with

pytestmark = pytest.mark.anyio

VICTIM = "victim"
PROMPT = "the prompt of the victim"
BYSTANDER = SamplingParams(max_tokens=120, seed=7)
ERRORS = [ValueError, MemoryError, RecursionError, StopIteration, Panic]
STEP_ERRORS = [RuntimeError, MemoryError, OSError, AssertionError, StopIteration]
FORM = StructuredOutputsParams(regex="[a-c]{4}")

covered: dict[type, list[str]] = {}
"""Messages -> the tests that break something at them."""


def at(*kinds):
    """Marks a test as a fault at these messages."""

    def mark(test):
        for kind in kinds:
            covered.setdefault(kind, []).append(test.__name__)
        return test

    return mark


async def ask(engine, **changes):
    """The victim's answer, or its error."""
    values = {"max_tokens": 6, "seed": 13} | changes
    try:
        return await engine.generate(PROMPT, SamplingParams(**values), request_id=VICTIM)
    except LimelightError as error:
        return error


async def until(condition):
    with anyio.fail_after(60):
        while not condition():
            await asyncio.sleep(0)


async def undisturbed():
    async with engine_with() as engine:
        return (await engine.generate("somebody else", BYSTANDER)).outputs[0].token_ids


async def contained(engine, **changes):
    """The victim's error; a bystander and whoever comes later are served as ever, and nothing stays behind."""
    expected = await undisturbed()
    async with engine:
        with anyio.fail_after(60):
            async with engine.stream("somebody else", BYSTANDER) as bystander:
                await anext(bystander)
                error = await ask(engine, **changes)
                assert (await bystander.result()).outputs[0].token_ids == expected
            assert (await engine.generate("somebody else", BYSTANDER)).outputs[0].token_ids == expected
        assert isinstance(error, LimelightError)
        await nothing_left(engine)
        (view,) = (view for view in engine.requests(recent=10) if view.request_id == VICTIM)
        assert view.error_code == error.code
        assert engine.state is EngineState.READY
    return error


async def fatal(engine, **changes):
    """The error that everybody gets."""
    async with engine:
        with anyio.fail_after(60):
            async with engine.stream("somebody else", SamplingParams(max_tokens=None, seed=7)) as bystander:
                await anext(bystander)
                errors = [await ask(engine, **changes)]
                with pytest.raises(EngineFailed) as failed:
                    await bystander.result()
                errors.append(failed.value)
                errors.append(await ask(engine))
            await until(lambda: engine.state is EngineState.FAILED)
            assert not engine.health().is_ready
            await engine.stop()
        assert engine.left_behind == ()
    assert all(isinstance(error, EngineFailed) for error in errors)
    return errors[0]


async def nothing_left(engine):
    def is_empty():
        now = engine.statistics()
        return (now.num_requests, now.num_running + now.num_waiting, now.num_free_pages, now.num_free_seats) == (
            0,
            0,
            now.num_pages,
            now.num_seats,
        )

    await until(is_empty)
    engine._system.parts.planner.check()


def raising(original, error, condition):
    def broken(self, *arguments, **options):
        if condition(self, *arguments, **options):
            raise error("a fault")
        return original(self, *arguments, **options)

    return broken


# ---- to the tokenizer


@at(messages.Encode)
@pytest.mark.parametrize("error", ERRORS)
async def test_encoding_breaks(error):
    class Vocabulary(ByteVocabulary):
        def encode(self, text, *, add_special_tokens):
            if text == PROMPT:
                raise error("a fault")
            return super().encode(text, add_special_tokens=add_special_tokens)

    assert "could not be encoded" in (await contained(engine_with(vocabulary=Vocabulary()))).message


@at(messages.Encode)
async def test_a_template_breaks(monkeypatch):
    monkeypatch.setattr(PlainChatFormat, "render", raising(PlainChatFormat.render, ZeroDivisionError, lambda *_: True))
    async with engine_with() as engine, engine.stream("somebody else", BYSTANDER) as bystander:
        with anyio.fail_after(60), pytest.raises(LimelightError, match="ZeroDivisionError"):
            await engine.chat([{"role": "user", "content": "hello"}])
        assert (await bystander.result()).outputs[0].token_ids == await undisturbed()


# ---- to the constraints


@at(messages.Compile)
@pytest.mark.parametrize("error", ERRORS)
async def test_compiling_breaks(monkeypatch, error):
    monkeypatch.setattr(ConstraintCompiler, "compile", raising(ConstraintCompiler.compile, error, lambda *_: True))
    await contained(engine_with(), structured_outputs=FORM)


@at(messages.MakeMasks, messages.MaskRow, messages.ConstraintFailed)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("number", [0, 2])
async def test_making_a_mask_breaks(monkeypatch, error, number):
    broken = raising(Constraint.mask, error, lambda constraint: constraint._num_tokens == number)
    monkeypatch.setattr(Constraint, "mask", broken)
    await contained(engine_with(), structured_outputs=FORM)


# ---- to the scheduler


@at(messages.Submit)
@pytest.mark.parametrize("error", [ValueError, MemoryError, AssertionError])
async def test_adding_to_the_plan_breaks(error):
    engine = engine_with()

    async def sabotage():
        planner = engine._system.parts.planner
        add = planner.add

        def broken(sequence):
            add(sequence)
            if sequence.request_id == VICTIM and sequence.index == 1:
                raise error("a fault")

        planner.add = broken

    assert "could not be scheduled" in (await contained(after_start(engine, sabotage), n=3)).message


@at(messages.Cancel)
async def test_cancelling_breaks(monkeypatch):
    engine = engine_with()

    async def sabotage():
        planner = engine._system.parts.planner
        cancel = planner.cancel

        def broken(request_id, index=None):
            if request_id == VICTIM:
                raise ValueError("a fault")
            cancel(request_id, index)

        planner.cancel = broken

    endless = SamplingParams(max_tokens=None, seed=7)
    async with after_start(engine, sabotage), engine.stream("somebody else", endless) as bystander:
        async with engine.stream(PROMPT, endless, request_id=VICTIM) as stream:
            await anext(stream)
        with anyio.fail_after(60), pytest.raises(EngineFailed, match="the scheduler stopped: ValueError"):
            await bystander.result()


@at(messages.StepDone)
async def test_taking_a_result_breaks():
    class Executor(ScriptedExecutor):
        def submit(self, step):
            wait = super().submit(step)
            if any(self._seats[chunk.seat].sampling.seed == 13 for chunk in step.chunks):
                return lambda: wait()[:-1]  # one result is missing
            return wait

    await fatal(engine_with(Executor))


@at(messages.StepFailed, messages.Step)
@pytest.mark.parametrize("error", STEP_ERRORS)
@pytest.mark.parametrize("place", ["submit", "wait"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_forward_pass_breaks(error, place, depth):
    class Executor(ScriptedExecutor):
        def submit(self, step):
            wait = super().submit(step)
            if not any(self._seats[chunk.seat].sampling.seed == 13 for chunk in step.chunks):
                return wait
            if place == "submit":
                raise error("a fault")

            def broken():
                raise error("a fault")

            return broken

    expected = await undisturbed()
    async with engine_with(Executor, pipeline_depth=depth) as engine:
        with anyio.fail_after(60):
            async with engine.stream("somebody else", BYSTANDER) as companion:
                await anext(companion)
                error = await ask(engine)
                with pytest.raises(StepFailure):  # it was in the same batch
                    await companion.result()
            assert isinstance(error, StepFailure)
            assert (await engine.generate("somebody else", BYSTANDER)).outputs[0].token_ids == expected
        await nothing_left(engine)
        assert engine.state is EngineState.READY


@at(messages.StepFailed)
async def test_when_every_step_fails_for_everybody_the_engine_gives_up():
    """A device that has failed may show it as an ordinary error; one bad request cannot do that to others."""
    is_broken = True

    def before_step(step):
        if is_broken:
            raise RuntimeError("the device does not answer")

    async with scripted_engine(before_step=before_step) as engine:
        for _ in range(3 * FATAL_FAILURES):
            with pytest.raises(StepFailure):
                await engine.generate(PROMPT, BYSTANDER, request_id=VICTIM)
        is_broken = False
        await engine.generate("somebody else", BYSTANDER)
        is_broken = True
        for number in range(FATAL_FAILURES):
            assert engine.state is EngineState.READY
            with pytest.raises((StepFailure, EngineFailed)) as failed:
                await engine.generate(str(number), BYSTANDER)
            assert number == FATAL_FAILURES - 1 or isinstance(failed.value, StepFailure)
        await until(lambda: engine.state is EngineState.FAILED)
        with pytest.raises(EngineFailed, match="the device or the model is broken"):
            await engine.generate("late", BYSTANDER)


@at(messages.DeliveryDue)
async def test_delivering_breaks(monkeypatch):
    engine = engine_with(stream_interval=0.001)

    async def sabotage():
        broken = raising(Deliveries.take_all, ValueError, lambda *_: bool(engine.request_view(VICTIM)))
        monkeypatch.setattr(Deliveries, "take_all", broken)

    await fatal(after_start(engine, sabotage), max_tokens=None)


# ---- to the model runner


@at(messages.Masks)
@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
async def test_drawing_with_masks_breaks(error):
    class Executor(ScriptedExecutor):
        def put_masks(self, step_number, masks):
            super().put_masks(step_number, masks)
            raise error("a fault")

    async with engine_with(Executor) as engine:
        with anyio.fail_after(60):
            assert isinstance(await ask(engine, structured_outputs=FORM), StepFailure)
            assert (await engine.generate("somebody else", BYSTANDER)).outputs[0].token_ids == await undisturbed()
        await nothing_left(engine)


@at(messages.DeviceLost, messages.Step)
@pytest.mark.parametrize("error", [EngineFailed("the device fell off the bus"), Panic("native"), SystemExit(3)])
@pytest.mark.parametrize("place", ["submit", "wait"])
async def test_the_device_is_lost(error, place):
    class Executor(ScriptedExecutor):
        def submit(self, step):
            wait = super().submit(step)
            if not any(self._seats[chunk.seat].sampling.seed == 13 for chunk in step.chunks):
                return wait
            if place == "submit":
                raise error

            def broken():
                raise error

            return broken

    assert "the device is lost" in (await fatal(engine_with(Executor))).message


@pytest.fixture
def adapter(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "num_bytes": 1000}))
    return str(tmp_path)


@at(messages.PutAdapter, messages.DropAdapter)
@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
@pytest.mark.parametrize("place", ["read", "put", "drop"])
async def test_an_adapter_breaks(monkeypatch, adapter, error, place):
    expected = await undisturbed()
    broken = raising(getattr(ScriptedAdapters, place), error, lambda *_: True)
    async with scripted_engine() as engine, engine.stream("somebody else", BYSTANDER) as bystander:
        await anext(bystander)
        with monkeypatch.context() as patched, anyio.fail_after(60):
            patched.setattr(ScriptedAdapters, place, broken)
            if place == "drop":
                await engine.load_adapter("one", adapter)
                with pytest.raises(error, match="a fault"):
                    await engine.unload_adapter("one")
            else:
                with pytest.raises(error, match="a fault"):
                    await engine.load_adapter("one", adapter)
        assert engine.adapters == ()
        assert (await bystander.result()).outputs[0].token_ids == expected
        await engine.load_adapter("one", adapter)
        assert (await engine.generate("a", BYSTANDER, adapter="one")).usage.completion_tokens == 120


# ---- to a request


def is_the_victims(kind):
    return lambda actor, message: isinstance(message, kind) and actor.request.request_id == VICTIM


@at(messages.Encoded, messages.Compiled)
@pytest.mark.parametrize("kind", [messages.Encoded, messages.Compiled])
async def test_preparing_a_request_breaks(monkeypatch, kind):
    monkeypatch.setattr(RequestActor, "_prepare", raising(RequestActor._prepare, KeyError, is_the_victims(kind)))
    assert "the request failed: KeyError" in (await contained(engine_with(), structured_outputs=FORM)).message


@at(messages.Generated)
@pytest.mark.parametrize("number", [1, 3])
async def test_making_text_breaks(monkeypatch, number):
    broken = raising(
        Choice.advance, UnicodeError, lambda choice, _: choice._sampling.seed == 13 and choice.num_tokens >= number
    )
    monkeypatch.setattr(Choice, "advance", broken)
    assert "the request failed: UnicodeError" in (await contained(engine_with())).message


@at(messages.Failed)
async def test_the_reader_has_gone_when_the_failure_comes(monkeypatch):
    def refuse(*_):
        raise InvalidRequest("not today")

    monkeypatch.setattr(ConstraintCompiler, "compile", refuse)
    async with engine_with() as engine:
        params = SamplingParams(max_tokens=6, seed=13, structured_outputs=FORM)
        async with engine.stream(PROMPT, params, request_id=VICTIM) as stream:
            pass
        with anyio.fail_after(60), pytest.raises((RequestCancelled, InvalidRequest)):
            await stream.result()
        await nothing_left(engine)


def after_start(engine, sabotage):
    """`engine`, which is sabotaged as soon as it runs."""
    start = engine.start

    async def started():
        await start()
        await sabotage()

    engine.start = started
    return engine


def test_no_message_is_left_out():
    receivers = (
        messages.ToTokenizer,
        messages.ToConstraints,
        messages.ToScheduler,
        messages.ToModelRunner,
        messages.ToRequest,
    )
    protocol = {kind for receiver in receivers for kind in (typing.get_args(receiver) or (receiver,))}
    assert protocol <= covered.keys(), "a message without a fault"
