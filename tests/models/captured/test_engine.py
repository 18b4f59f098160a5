"""Engines over captured steps: one or two steps in flight give what torch gives, whoever stops, leaves or fails."""

import asyncio
import random
import string
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from limelight.engine import Engine, EngineState
from limelight.errors import EngineFailed, LimelightError, StepFailure
from limelight.generation import Completion, SamplingParams
from limelight.models.checkpoint import Checkpoint
from limelight.models.loaded_model import LoadedModel
from limelight.step import Step, StepExecutor, StepResult
from limelight.testing import END, VOCAB_SIZE, ByteVocabulary, PlainChatFormat
from tests.models.captured.queued_device import out_of_memory
from tests.models.captured.rigs import CapturedRig, capacity_of, torch_executor
from tests.models.tiny_models import saved, tiny_llama

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_torch_thread")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model = tiny_llama(vocab_size=VOCAB_SIZE)
    model.lm_head.weight.data[128:] *= 0.2  # most tokens are letters
    return saved(model, tmp_path_factory.mktemp("tiny"))


class MaskedExecutor:
    """Lets every chunk that draws wait for a mask, which then allows everything."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor

    def submit(self, step: Step) -> Callable[[], StepResult]:
        chunks = tuple(msgspec.structs.replace(chunk, masked=chunk.sample) for chunk in step.chunks)
        wait = self._executor.submit(msgspec.structs.replace(step, chunks=chunks))
        if any(chunk.masked for chunk in chunks):
            self._executor.put_masks(step.number, {})
        return wait

    def put_masks(self, step_number: int, masks: Any) -> None:
        raise AssertionError("the scheduler sends none")

    def close(self) -> None:
        self._executor.close()


class EngineRig:
    """An engine over a captured executor, or over torch's."""

    def __init__(self, checkpoint: Checkpoint, kind: str, depth: int, *, num_pages: int = 64, **options: Any) -> None:
        self.rig: CapturedRig | None = None

        def load(config: Any, report: Any) -> LoadedModel:
            capacity = capacity_of(checkpoint, num_pages=num_pages, num_seats=config.max_num_seqs)
            executor: Any
            if kind == "torch":
                executor = torch_executor(checkpoint, capacity)
            else:
                self.rig = CapturedRig(checkpoint, capacity, captured=kind != "uncaptured", seed=depth)
                executor = self.rig.executor
            return LoadedModel(
                name="tiny",
                vocabulary=ByteVocabulary(),
                chat_format=PlainChatFormat(),
                executor=MaskedExecutor(executor) if kind == "masked" else executor,
                capacity=capacity,
                eos_token_ids=frozenset({END}),
            )

        self.engine = Engine(
            "tiny", loader=load, pipeline_depth=depth, page_size=8, max_num_seqs=6, max_num_batched_tokens=96, **options
        )


def asks() -> list[tuple[str, SamplingParams]]:
    chance = random.Random(7)
    entries = []
    for number in range(16):
        prompt = chance.choice(("", "a beginning that several share, ", "x")) + str(number) * chance.randint(1, 9)
        sampling = SamplingParams(
            n=chance.choice((1, 1, 1, 2)),
            seed=number,
            temperature=chance.choice((0.0, 0.0, 1.0)),
            top_p=chance.choice((1.0, 0.8)),
            max_tokens=chance.choice((5, 24, 40)),
            min_tokens=chance.choice((0, 4)),
            stop=chance.choice((None, [*chance.sample(string.ascii_letters, 12), "ff"])),
            logprobs=chance.choice((None, None, 2)),
            presence_penalty=chance.choice((0.0, 1.0)),
            repetition_penalty=chance.choice((1.0, 1.2)),
            logit_bias=chance.choice((None, {101: 3.0, 97: -4.0})),
            ignore_eos=chance.choice((True, False)),
        )
        entries.append((prompt, sampling))
    repeating = SamplingParams(temperature=0.0, max_tokens=24, logit_bias={101: 100.0}, ignore_eos=True, logprobs=1)
    return [*entries, ("again and again", repeating)]


async def ask_all(engine: Engine, *, leaving: int = 0) -> list[Any]:
    """What each ask gives, an error included; the first `leaving` of further streams are left after a few tokens."""
    answers: dict[int, Any] = {}

    async def ask(number: int, prompt: str, sampling: SamplingParams) -> None:
        try:
            answers[number] = await engine.generate(prompt, sampling)
        except LimelightError as error:
            answers[number] = error

    async def leave(number: int) -> None:
        sampling = SamplingParams(max_tokens=60, ignore_eos=True, seed=number, frequency_penalty=0.5)
        async with engine.stream(f"somebody who leaves {number}", sampling) as running:
            async for _ in running:
                number -= 1
                if number < 0:
                    return

    async with anyio.create_task_group() as group:
        for number, (prompt, sampling) in enumerate(asks()):
            group.start_soon(ask, number, prompt, sampling)
            if number < leaving:
                group.start_soon(leave, number)
    return [answers[number] for number in range(len(answers))]


def agree(ours: list[Any], expected: list[Any]) -> None:
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.usage.completion_tokens == theirs.usage.completion_tokens
        for choice, other in zip(mine.outputs, theirs.outputs, strict=True):
            assert plain(choice) == plain(other)
            for row, other_row in zip(choice.logprobs or (), other.logprobs or (), strict=True):
                np.testing.assert_allclose(row.logprob, other_row.logprob, atol=1e-4)


def plain(choice: Completion) -> tuple[Any, ...]:
    return choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint) -> list[Any]:
    async def run() -> list[Any]:
        async with EngineRig(checkpoint, "torch", 1).engine as engine:
            return await ask_all(engine)

    answers = asyncio.run(run())
    reasons = [str(output.finish_reason) for answer in answers for output in answer.outputs]
    assert reasons.count("stop") > 3
    assert reasons.count("length") > 3
    return answers


@pytest.mark.parametrize(("kind", "depth"), [("captured", 1), ("captured", 2), ("uncaptured", 2), ("masked", 2)])
async def test_one_and_two_steps_in_flight_give_the_same(
    checkpoint: Checkpoint, expected: list[Any], kind: str, depth: int
) -> None:
    async with EngineRig(checkpoint, kind, depth).engine as engine:
        agree(await ask_all(engine, leaving=6), expected)
        statistics = engine.statistics()
        assert statistics.num_free_pages == statistics.num_pages
        assert statistics.num_free_seats == statistics.num_seats


@pytest.mark.parametrize("depth", [1, 2])
async def test_preemptions_change_nothing(checkpoint: Checkpoint, expected: list[Any], depth: int) -> None:
    async with EngineRig(checkpoint, "captured", depth, num_pages=13).engine as engine:
        agree(await ask_all(engine, leaving=6), expected)
        assert engine.statistics().num_preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
async def test_guesses_change_nothing(checkpoint: Checkpoint, expected: list[Any], depth: int) -> None:
    rig = EngineRig(checkpoint, "captured", depth, num_speculative_tokens=3, prompt_lookup_min=1)
    async with rig.engine as engine:
        agree(await ask_all(engine), expected)
        assert engine.statistics().num_accepted_tokens > 0


@pytest.mark.parametrize("kind", ["captured", "uncaptured"])
async def test_out_of_memory_in_a_step_fails_the_requests_of_that_step(
    checkpoint: Checkpoint, expected: list[Any], kind: str
) -> None:
    rig = EngineRig(checkpoint, kind, 2)
    async with rig.engine as engine:
        assert rig.rig is not None
        device, num_runs = rig.rig.device, 0

        def may_fail() -> None:
            nonlocal num_runs
            # Copies of a step's words take no memory, and are not where it is missing.
            num_runs += device.calls[-1].startswith("run _uncaptured")
            if num_runs in (6, 31):
                num_runs += 1
                out_of_memory()

        device.before_run = may_fail
        answers = await ask_all(engine)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        assert all(isinstance(error, StepFailure) for error in failed)
        assert 0 < len(failed) < len(answers)
        pairs = [(mine, theirs) for mine, theirs in zip(answers, expected, strict=True) if mine not in failed]
        agree([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
        device.before_run = lambda: None
        agree(await ask_all(engine), expected)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("when", ["at once", "while it runs"])
async def test_a_fault_of_the_device_ends_every_request_and_the_engine(
    checkpoint: Checkpoint, depth: int, when: str
) -> None:
    rig = EngineRig(checkpoint, "captured", depth)
    with anyio.fail_after(30):
        async with rig.engine as engine:
            assert rig.rig is not None
            device, steps = rig.rig.device, 0

            def may_fail() -> None:
                nonlocal steps
                steps += 1
                if steps == 40:
                    device.fault_in_work = "an illegal memory access"
                    if when == "at once":
                        device.fault = device.fault_in_work

            device.before_run = may_fail
            answers = await ask_all(engine, leaving=0)
            assert any(isinstance(answer, EngineFailed) for answer in answers)
            errors = [answer for answer in answers if isinstance(answer, Exception)]
            assert all(isinstance(error, EngineFailed) for error in errors)
            assert "illegal memory access" in str(errors[0])
            assert engine.state is EngineState.FAILED
