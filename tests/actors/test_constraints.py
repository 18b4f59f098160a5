"""The constraints actor: answers in time whatever a grammar does, and holds up nobody for another's grammar."""

import threading
import time
from contextlib import asynccontextmanager

import anyio
import pytest

from limelight.actors.channel import Channel
from limelight.actors.constraints import NUM_COMPILE_THREADS, NUM_MASK_THREADS, ConstraintsActor
from limelight.actors.messages import Compile, Compiled, Failed, MakeMasks, MaskRow
from limelight.errors import InvalidRequest, LimelightError, Overloaded
from limelight.generation import SamplingParams

pytestmark = pytest.mark.anyio

SHORT = 0.05
LONG = 60.0


class FakeCompiler:
    """Hangs for the seed 1 until `release` is set, and breaks for the seed 2."""

    def __init__(self):
        self.release = threading.Event()

    def compile(self, sampling, marks):
        if sampling.seed == 1:
            self.release.wait()
        if sampling.seed == 2:
            raise MemoryError
        if sampling.seed == 3:
            raise InvalidRequest("no such form")
        return f"compiled {sampling.seed}"


class FakeConstraint:
    def __init__(self, mask=b"mask", *, hangs_until=None, error=None):
        self._mask = mask
        self._hangs_until = hangs_until
        self._error = error
        self.known = []

    def advance(self, token_ids):
        self.known += token_ids

    def mask(self):
        if self._hangs_until is not None:
            self._hangs_until.wait()
        if self._error is not None:
            raise self._error
        return self._mask


class Rig:
    def __init__(self, actor, inbox, runner, scheduler):
        self.actor, self.inbox, self.runner, self.scheduler = actor, inbox, runner, scheduler

    def compile(self, seed):
        reply = Channel("request", 4)
        self.inbox.sender.tell(
            Compile(request_id=str(seed), sampling=SamplingParams(seed=seed), marks=None, reply_to=reply.sender)
        )
        return reply

    def make(self, number, *constraints, tokens=()):
        rows = [MaskRow(chunk, constraint, tokens, f"request {chunk}") for chunk, constraint in enumerate(constraints)]
        self.inbox.sender.tell(MakeMasks(number, tuple(rows)))


@asynccontextmanager
async def rig(compiler=None, *, compile_seconds=LONG, mask_seconds=LONG):
    inbox, runner, scheduler = Channel("constraints", 100), Channel("runner", 100), Channel("scheduler", 100)
    actor = ConstraintsActor(
        inbox,
        compiler or FakeCompiler(),
        runner.sender,
        scheduler.sender,
        max_compile_seconds=compile_seconds,
        max_mask_seconds=mask_seconds,
    )
    try:
        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group:
                group.start_soon(actor.run)
                yield Rig(actor, inbox, runner, scheduler)
                group.cancel_scope.cancel()
    finally:
        await actor.close()


async def only(channel):
    (message,) = await channel.drain()
    return message


async def test_answers():
    async with rig() as parts:
        assert await only(parts.compile(7)) == Compiled("compiled 7")
        failed = await only(parts.compile(3))
        assert failed == Failed(failed.error)
        assert failed.error.message == "no such form"
        broken = await only(parts.compile(2))
        assert type(broken.error) is LimelightError
        assert "MemoryError" in broken.error.message


async def test_what_compiles_for_too_long_is_refused_once_and_the_next_is_served():
    compiler = FakeCompiler()
    async with rig(compiler, compile_seconds=SHORT) as parts:
        slow = parts.compile(1)
        failed = await only(slow)
        assert isinstance(failed.error, InvalidRequest)
        assert failed.error.param == "structured_outputs"
        assert "0.05 s" in failed.error.message
        compiler.release.set()
        assert isinstance(await only(parts.compile(7)), Compiled)
        assert not len(slow)


async def test_who_waits_behind_grammars_that_hang_may_try_again():
    compiler = FakeCompiler()
    async with rig(compiler, compile_seconds=SHORT) as parts:
        hanging = [parts.compile(1) for _ in range(NUM_COMPILE_THREADS)]
        behind = parts.compile(7)
        for reply in hanging:
            assert isinstance((await only(reply)).error, InvalidRequest)
        assert isinstance((await only(behind)).error, Overloaded)
        compiler.release.set()


async def test_a_request_that_is_gone_costs_nothing():
    compiler = FakeCompiler()
    async with rig(compiler) as parts:
        hanging = [parts.compile(1) for _ in range(NUM_COMPILE_THREADS)]
        gone = parts.compile(2)
        gone.close()
        compiler.release.set()
        for reply in hanging:
            await only(reply)
        assert await only(parts.compile(7)) == Compiled("compiled 7")


@pytest.mark.parametrize("num_rows", [1, 3, 50])
async def test_masks_of_all_rows_come_together(num_rows):
    async with rig() as parts:
        constraints = [FakeConstraint(b"%d" % number) for number in range(num_rows)]
        parts.make(9, *constraints, tokens=(4, 5))
        masks = await only(parts.runner)
    assert masks.number == 9
    assert masks.masks == {number: b"%d" % number for number in range(num_rows)}
    assert all(constraint.known == [4, 5] for constraint in constraints)


async def test_a_row_that_fails_is_left_out_and_its_request_told_first():
    async with rig() as parts:
        parts.make(
            9, FakeConstraint(), FakeConstraint(error=InvalidRequest("too complex")), FakeConstraint(error=KeyError())
        )
        masks = await only(parts.runner)
        failures = {message.request_id: message.error for message in parts.scheduler.take()}
    assert masks.masks == {0: b"mask"}
    assert failures["request 1"].message == "too complex"
    assert "KeyError" in failures["request 2"].message


async def test_a_row_that_hangs_fails_and_those_behind_it_are_made():
    release = threading.Event()
    async with rig(mask_seconds=SHORT) as parts:
        parts.make(9, FakeConstraint(), FakeConstraint(hangs_until=release), FakeConstraint(), FakeConstraint())
        masks = await only(parts.runner)
        (failure,) = parts.scheduler.take()
        assert set(masks.masks) == {0, 2, 3}
        assert failure.request_id == "request 1"
        assert failure.error.param == "structured_outputs"
        parts.make(10, FakeConstraint())
        assert (await only(parts.runner)).masks == {0: b"mask"}
        release.set()


async def test_a_row_whose_thread_gets_no_processor_is_waited_for_and_one_that_computes_is_not():
    class Late(FakeConstraint):
        def mask(self):
            time.sleep(4 * SHORT)
            return super().mask()

    class Busy(FakeConstraint):
        def mask(self):
            while not release.is_set():
                pass
            return super().mask()

    release = threading.Event()
    async with rig(mask_seconds=SHORT) as parts:
        parts.make(9, Late())
        assert (await only(parts.runner)).masks == {0: b"mask"}
        assert parts.scheduler.take() == []
        parts.make(10, Busy())
        assert (await only(parts.runner)).masks == {}
        release.set()
        assert "takes longer" in parts.scheduler.take()[0].error.message


async def test_when_every_thread_hangs_each_step_still_gets_its_masks():
    release = threading.Event()
    async with rig(mask_seconds=SHORT) as parts:
        for number in range(NUM_MASK_THREADS + 1):
            parts.make(number, FakeConstraint(hangs_until=release))
        told = []
        while len(told) <= NUM_MASK_THREADS:
            told += await parts.runner.drain()
        assert sorted(masks.number for masks in told) == list(range(NUM_MASK_THREADS + 1))
        assert all(not masks.masks for masks in told)
        release.set()


async def test_preparing_ahead_hides_that_grammars_do_not_work():
    class Poor(FakeCompiler):
        def prepare(self):
            raise InvalidRequest("the model has no end-of-sequence token")

    async with rig(Poor()) as parts:
        await parts.actor.prepare()
        assert await only(parts.compile(7)) == Compiled("compiled 7")
