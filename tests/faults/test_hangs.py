"""Calls that never return: whoever waits for them is told, those who need not wait go on, and no end waits for them."""

import threading

import anyio
import pytest

from limelight.actors.tokenizer import NUM_THREADS, TokenizerActor
from limelight.errors import EngineNotRunning, InvalidRequest, Overloaded
from limelight.generation import SamplingParams
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.constraints.constraint import Constraint
from limelight.structured_outputs import StructuredOutputsParams
from limelight.testing import ByteVocabulary
from tests.faults.test_every_message import nothing_left
from tests.test_engine_faults import engine_with, threads

pytestmark = pytest.mark.anyio

TWO = SamplingParams(max_tokens=2, seed=1)
FORM = SamplingParams(max_tokens=6, seed=1, structured_outputs=StructuredOutputsParams(regex="[a-c]{4}"))


class Hang:
    """A call that does not return before the test's end."""

    def __init__(self):
        self._over = threading.Event()
        self.num_calls = 0

    def __call__(self, *_):
        self.num_calls += 1
        self._over.wait(60)

    def end(self):
        self._over.set()


@pytest.fixture
def hang():
    hang = Hang()
    yield hang
    hang.end()


@pytest.fixture
def short_limits(monkeypatch):
    """What may take a minute takes a moment."""
    for actor, name in ((TokenizerActor, "max_seconds"),):
        monkeypatch.setitem(actor.__init__.__kwdefaults__, name, 0.05)


def vocabulary_that_hangs(hang):
    class Vocabulary(ByteVocabulary):
        def encode(self, text, *, add_special_tokens):
            if text == "hang":
                hang()
            return super().encode(text, add_special_tokens=add_special_tokens)

        def decode(self, token_ids, *, skip_special_tokens):
            if list(token_ids) == [7]:
                hang()
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    return Vocabulary()


@pytest.mark.usefixtures("short_limits")
async def test_a_prompt_that_is_never_encoded_fails_alone(hang):
    async with engine_with(vocabulary=vocabulary_that_hangs(hang)) as engine:
        with anyio.fail_after(60):
            with pytest.raises(Overloaded, match=r"could not be encoded within 0\.05 s"):
                await engine.generate("hang", TWO)
            assert (await engine.generate("calm", TWO)).usage.completion_tokens == 2
        await nothing_left(engine)
        hang.end()


@pytest.mark.usefixtures("short_limits")
async def test_when_no_thread_is_left_to_encode_everybody_is_told(hang):
    async with engine_with(vocabulary=vocabulary_that_hangs(hang)) as engine:
        with anyio.fail_after(60):
            for _ in range(NUM_THREADS):
                with pytest.raises(Overloaded, match="could not be encoded within"):
                    await engine.generate("hang", TWO)
            with pytest.raises(Overloaded, match="have been stuck for"):
                await engine.generate("calm", TWO)
            with pytest.raises(Overloaded, match="no text could be encoded"):
                await engine.tokenize("calm")
            hang.end()
            assert (await engine.generate("calm", TWO)).usage.completion_tokens == 2
        await nothing_left(engine)


@pytest.mark.usefixtures("short_limits")
async def test_a_queue_that_moves_is_waited_for():
    """However long it is: only threads that are stuck are given up."""
    moved = threading.Semaphore(0)

    class Vocabulary(ByteVocabulary):
        def encode(self, text, *, add_special_tokens):
            moved.release()
            threading.Event().wait(0.03)  # a queue of 8 takes longer than the limit
            return super().encode(text, add_special_tokens=add_special_tokens)

    async with engine_with(vocabulary=Vocabulary()) as engine, anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(engine.generate, str(number), TWO)


async def test_a_grammar_that_never_compiles_fails_alone(hang, monkeypatch):
    monkeypatch.setattr(ConstraintCompiler, "compile", hang)
    monkeypatch.setattr("limelight.actor_system.ConstraintsActor", _quick_constraints())
    async with engine_with() as engine:
        with anyio.fail_after(60):
            with pytest.raises(InvalidRequest, match="to compile; make it simpler"):
                await engine.generate("a", FORM)
            assert (await engine.generate("calm", TWO)).usage.completion_tokens == 2
        await nothing_left(engine)
        hang.end()


async def test_a_mask_that_is_never_made_fails_alone(hang, monkeypatch):
    monkeypatch.setattr(Constraint, "mask", hang)
    monkeypatch.setattr("limelight.actor_system.ConstraintsActor", _quick_constraints())
    async with engine_with() as engine:
        with anyio.fail_after(60):
            with pytest.raises(InvalidRequest, match="the mask of the next token takes longer"):
                await engine.generate("a", FORM)
            assert (await engine.generate("calm", TWO)).usage.completion_tokens == 2
        await nothing_left(engine)
        hang.end()


@pytest.mark.parametrize("place", ["encode", "compile", "mask", "question"])
async def test_an_end_waits_for_none_of_them(hang, monkeypatch, place):
    engine = engine_with(vocabulary=vocabulary_that_hangs(hang))
    if place in ("compile", "mask"):
        monkeypatch.setattr(ConstraintCompiler if place == "compile" else Constraint, place, hang)
    ended = []

    async def ask():
        try:
            if place == "question":
                await engine.detokenize([7])
            else:
                await engine.generate("hang" if place == "encode" else "a", FORM)
        except EngineNotRunning as error:
            ended.append(error)

    async with engine, anyio.create_task_group() as group:
        group.start_soon(ask)
        with anyio.fail_after(60):
            while not hang.num_calls:
                await anyio.sleep(0.001)
            await engine.stop(timeout_seconds=0.01)
    assert len(ended) == 1
    assert engine.left_behind == ({"encode": "tokenizer", "question": "tokenizer"}.get(place, "constraints"),)
    hang.end()
    with anyio.fail_after(60):
        while threads():
            await anyio.sleep(0.001)


def _quick_constraints():
    from limelight.actors.constraints import ConstraintsActor

    class QuickConstraints(ConstraintsActor):
        def __init__(self, *arguments):
            super().__init__(*arguments, max_compile_seconds=0.05, max_mask_seconds=0.05)

    return QuickConstraints
