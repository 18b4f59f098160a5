"""Steps whose masks come while they run: the same tokens from every kind of executor, rows without masks unmoved."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from limelight.actors.messages import Masks
from limelight.actors.step_order import StepOrder
from limelight.models.checkpoint import Checkpoint
from limelight.models.token_masks import mask_bytes
from limelight.step import Chunk, SeatSampling, SeatTaken, Step, StepExecutor, StepResult
from tests.models.captured.rigs import CapturedRig, Drive, capacity_of, torch_executor
from tests.models.captured.test_executor import agree, asks_of
from tests.models.sequences import GREEDY
from tests.models.tiny_models import VOCAB_SIZE, Rig, c_kernels, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PROMPT = (5, 17, 80, 3, 3, 41, 9)
EVERYTHING = b"\xff" * mask_bytes(VOCAB_SIZE)
Make = Callable[[], Any]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(tiny_llama(), tmp_path_factory.mktemp("tiny"))


def maker(checkpoint: Checkpoint, kind: str) -> Make:
    """Makes executors of a kind."""
    capacity = capacity_of(checkpoint)
    if kind == "torch":
        return lambda: torch_executor(checkpoint, capacity)
    if kind == "in C":
        kernels = c_kernels()
        return lambda: Rig(checkpoint, kernels=kernels).executor
    return lambda: CapturedRig(checkpoint, capacity, captured=kind == "captured", seed=1).executor


@pytest.fixture(params=["in C", "torch", "captured", "uncaptured"])
def make_executor(checkpoint: Checkpoint, request: pytest.FixtureRequest) -> Make:
    return maker(checkpoint, request.param)


def only(*token_ids: int) -> bytes:
    mask = bytearray(mask_bytes(VOCAB_SIZE))
    for token_id in token_ids:
        mask[token_id // 8] |= 1 << token_id % 8
    return bytes(mask)


def masked_step(number: int = 0, sampling: SeatSampling = GREEDY, **fields: Any) -> Step:
    """Three prompts, of which the second and third are masked; the third has two guesses."""
    prompts = (PROMPT, (4, 5, 6), (1, 2, 3, 1, 2))
    chunks = [
        Chunk(
            seat=seat,
            start=0,
            num_tokens=len(prompt),
            token_ids=prompt,
            new_pages=(seat,),
            sample=True,
            masked=seat > 0,
            num_drafts=2 if seat == 2 else 0,
        )
        for seat, prompt in enumerate(prompts)
    ]
    taken = [SeatTaken(seat=seat, sampling=sampling, num_prompt_tokens=3) for seat in range(3)]
    return Step(number=number, chunks=tuple(chunks), taken=tuple(taken), **fields)


def test_masked_chunks_draw_what_their_masks_allow(make_executor: Make) -> None:
    executor = make_executor()
    wait = executor.submit(masked_step())
    executor.put_masks(0, {1: only(77), 2: only(1) + only(2) + only(96, 95)})
    free, one, guessed = wait()
    other = make_executor()
    plain = other.submit(Step(number=0, chunks=masked_step().chunks[:1], taken=masked_step().taken[:1]))
    assert free == plain()[0]
    assert one.token_ids == (77,)
    assert guessed.token_ids[:2] == (1, 2)
    assert guessed.token_ids[2] in (95, 96)
    decodes = tuple(
        Chunk(seat=seat, start=3 + 2 * seat - 2, num_tokens=1, token_ids=None, sample=True) for seat in (1, 2)
    )
    assert all(executor.submit(Step(number=1, chunks=decodes))())


def test_rows_of_guesses_may_come_before_those_of_other_masked_chunks(make_executor: Make) -> None:
    executor, step = make_executor(), masked_step()
    wait = executor.submit(msgspec.structs.replace(step, chunks=step.chunks[::-1]))
    executor.put_masks(0, {0: only(1) + only(2) + only(9), 1: only(77)})
    guessed, one, free = wait()
    assert (guessed.token_ids, one.token_ids) == ((1, 2, 9), (77,))
    wait = executor.submit(masked_step(1, released=(0, 1, 2)))
    executor.put_masks(1, {})
    assert free == wait()[0]


def test_a_masked_chunk_that_is_left_out_draws_from_all_tokens(make_executor: Make) -> None:
    executor, other = make_executor(), make_executor()
    wait = executor.submit(masked_step())
    executor.put_masks(0, {})
    waited = other.submit(masked_step())
    other.put_masks(0, {1: EVERYTHING})
    assert wait() == waited()


def test_a_step_whose_masks_never_come_may_be_given_up(make_executor: Make) -> None:
    executor = make_executor()
    lost = executor.submit(masked_step())
    again = masked_step(1, released=(0, 1, 2))
    wait = executor.submit(again)
    executor.put_masks(1, {1: only(8)})
    assert wait()[1].token_ids == (8,)
    with pytest.raises(RuntimeError, match="given up"):
        lost()
    with pytest.raises(ValueError, match="does not wait"):
        executor.put_masks(0, {})
    executor.submit(masked_step(2))
    executor.close()


def test_a_mask_of_the_wrong_size_fails_the_step(make_executor: Make) -> None:
    executor = make_executor()
    executor.submit(masked_step())
    with pytest.raises(ValueError, match="it needs 48"):
        executor.put_masks(0, {1: only(3), 2: only(1)})
    wait = executor.submit(masked_step(1))
    executor.put_masks(1, {1: only(4)})
    assert wait()[1].token_ids == (4,)


def test_masks_count_for_their_own_step_alone(make_executor: Make) -> None:
    executor, other = make_executor(), make_executor()
    waits = []
    for each in (executor, other):
        wait = each.submit(masked_step())
        each.put_masks(0, {1: only(77)} if each is executor else {})
        wait()
        again = masked_step(1, released=(0, 1, 2))
        chunks = tuple(msgspec.structs.replace(chunk, masked=False) for chunk in again.chunks)
        waits.append(each.submit(msgspec.structs.replace(again, chunks=chunks)))
    assert waits[0]() == waits[1]()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chunk_without_a_token_to_draw_is_lost_alone(make_executor: Make, temperature: float) -> None:
    sampling = SeatSampling(temperature=temperature, seed=3, blocked_token_ids=(6, 70), blocked_below_position=9)
    for masks in ({1: only(), 2: EVERYTHING * 3}, {1: only(6, 70), 2: EVERYTHING * 3}):
        executor, other = make_executor(), make_executor()
        wait = executor.submit(masked_step(sampling=sampling))
        executor.put_masks(0, masks)
        free, lost, guessed = wait()
        waited = other.submit(masked_step(sampling=sampling))
        other.put_masks(0, {})
        assert (free, guessed) == (waited()[0], waited()[2])
        assert lost.token_ids == ()
        assert "none of the tokens that may come next can be drawn in step 0" in lost.failure


def test_nothing_to_draw_is_told_in_a_step_without_guesses(make_executor: Make) -> None:
    executor, step = make_executor(), masked_step()
    wait = executor.submit(msgspec.structs.replace(step, chunks=step.chunks[:2]))
    executor.put_masks(0, {1: only()})
    free, lost = wait()
    assert free.token_ids
    assert lost.failure is not None


def test_rows_behind_a_wrong_guess_may_allow_nothing(make_executor: Make) -> None:
    executor = make_executor()
    wait = executor.submit(masked_step())
    executor.put_masks(0, {2: only(1) + only(5) + only()})
    assert wait()[2].token_ids == (1, 5)
    wait = executor.submit(masked_step(1, released=(0, 1, 2)))
    executor.put_masks(1, {2: only(1) + only(2) + only()})
    assert wait()[2].failure is not None


def test_the_pass_runs_before_the_masks_come(checkpoint: Checkpoint) -> None:
    rig = Rig(checkpoint, kernels=c_kernels())
    wait = rig.executor.submit(masked_step())
    best = rig.logits.argmax(-1).tolist()
    rig.executor.put_masks(0, {})
    free, other, _ = wait()
    assert (free.token_ids, other.token_ids) == ((best[0],), (best[1],))


def test_log_probabilities_are_those_of_the_model(make_executor: Make) -> None:
    sampling = SeatSampling(temperature=1.0, seed=1, num_logprobs=3)
    executor, other = make_executor(), make_executor()
    wait = executor.submit(masked_step(sampling=sampling))
    free = other.submit(masked_step(sampling=sampling))
    other.put_masks(0, {})
    [best] = free()[1].logprobs
    rarest = next(token_id for token_id in range(VOCAB_SIZE) if token_id not in best.top_token_ids)
    executor.put_masks(0, {1: only(rarest)})
    [drawn] = wait()[1].logprobs
    assert (drawn.top_token_ids, drawn.top_logprobs) == (best.top_token_ids, best.top_logprobs)
    assert -math.inf < drawn.logprob < best.top_logprobs[-1]


class RandomlyMasked:
    """Lets about half of the chunks that draw wait for random masks, which go through a `StepOrder`, early or late.

    Equal steps get equal masks.
    """

    def __init__(self, executor: StepExecutor) -> None:
        self._order = StepOrder(executor, lambda number, wait, started: self._waits.append(wait))
        self._waits: list[Callable[[], StepResult]] = []
        self.num_masked = 0

    def submit(self, step: Step) -> Callable[[], StepResult]:
        chance = np.random.default_rng(step.number)
        chunks = tuple(
            msgspec.structs.replace(chunk, masked=chunk.sample and bool(chance.random() < 0.5)) for chunk in step.chunks
        )
        masks = {number: self._mask(chunk, chance) for number, chunk in enumerate(chunks) if chunk.masked}
        comes_early = chance.random() < 0.5
        message = Masks(step.number, dict(list(masks.items())[step.number % 5 == 0 :]))  # now and then one is left out
        if masks and comes_early:
            self._order.put_masks(message)
        self._order.submit(msgspec.structs.replace(step, chunks=chunks))
        if masks and not comes_early:
            self._order.put_masks(message)
        self.num_masked += len(masks)
        [wait] = self._waits
        self._waits.clear()
        return wait

    def _mask(self, chunk: Chunk, chance: np.random.Generator) -> bytes:
        density = chance.choice((0.05, 0.5, 0.95))
        rows = chance.random((chunk.num_drafts + 1, VOCAB_SIZE)) < density
        rows[:, 20:30] = True
        padded = np.zeros((len(rows), 8 * mask_bytes(VOCAB_SIZE)), np.bool_)
        padded[:, :VOCAB_SIZE] = rows
        return np.packbits(padded, axis=1, bitorder="little").tobytes()

    def put_masks(self, step_number: int, masks: Mapping[int, bytes]) -> None:
        raise AssertionError("the planner has none")

    def close(self) -> None:
        raise AssertionError("nobody closes it")


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("kind", ["in C", "captured"])
def test_masked_sequences_draw_what_torch_draws(checkpoint: Checkpoint, kind: str, guesses: bool) -> None:
    capacity, asks = capacity_of(checkpoint), asks_of(21)
    masked = RandomlyMasked(maker(checkpoint, kind)())
    drive = Drive(masked, capacity, asks, guesses=guesses)
    agree(drive, Drive(RandomlyMasked(maker(checkpoint, "torch")()), capacity, asks, guesses=guesses))
    assert masked.num_masked > 30
    plain = Drive(maker(checkpoint, "torch")(), capacity, asks, guesses=guesses)
    assert plain.tokens != drive.tokens, "masks change something"
