"""Captured steps on a queued device: the tokens of plain torch, whatever is captured, in flight, or in the padding."""

import random
import threading

import numpy as np
import pytest
import torch

from limelight.errors import EngineFailed, OutOfMemory
from limelight.models.checkpoint import Checkpoint
from limelight.step import Chunk, Sampled, SeatSampling, SeatTaken, Step
from tests.models.captured.queued_device import out_of_memory
from tests.models.captured.rigs import Ask, CapturedRig, Drive, capacity_of, torch_executor
from tests.models.sequences import GREEDY, Batch
from tests.models.tiny_models import VOCAB_SIZE, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PROMPT = [5, 17, 80, 3, 3, 41, 9]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(tiny_llama(), tmp_path_factory.mktemp("tiny"))


def asks_of(seed: int, number: int = 12) -> list[Ask]:
    """Prompts of which some share a beginning, with all kinds of settings."""
    chance = random.Random(seed)
    shared = [chance.randrange(VOCAB_SIZE) for _ in range(19)]
    asks: list[Ask] = []
    for index in range(number):
        length = chance.choice((1, 7, 8, 9, 30, 60))
        prompt = [*shared, *(chance.randrange(VOCAB_SIZE) for _ in range(length))] if index % 3 else shared[:length]
        sampling = SeatSampling(
            temperature=chance.choice((0.0, 0.0, 0.8, 1.3)),
            top_p=chance.choice((1.0, 0.9)),
            top_k=chance.choice((0, 0, 5)),
            min_p=chance.choice((0.0, 0.1)),
            seed=chance.choice((1, -5, 2**62 + 12345, -(2**63))),
            presence_penalty=chance.choice((0.0, 0.0, 1.5)),
            frequency_penalty=chance.choice((0.0, 0.0, 0.7)),
            repetition_penalty=chance.choice((1.0, 1.0, 1.3)),
            num_logprobs=chance.choice((None, None, None, 0, 3)),
            logit_bias=chance.choice((None, None, {7: 4.0, 3: -100.0, 96: 2.5, 500: 3.0})),
            blocked_token_ids=chance.choice(((), (9, 7, 7, 300))),
            blocked_below_position=len(prompt) + 5,
        )
        asks.append((tuple(prompt), sampling, chance.choice((1, 6, 20))))
    return asks


def agree(ours: Drive, expected: Drive) -> None:
    assert ours.tokens == expected.tokens
    for number, drawn in expected.drawn.items():
        for mine, theirs in zip(ours.drawn[number], drawn, strict=True):
            assert (mine.logprobs is None) == (theirs.logprobs is None)
            for row, other in zip(mine.logprobs or (), theirs.logprobs or (), strict=True):
                assert row.top_token_ids == other.top_token_ids
                np.testing.assert_allclose(
                    [row.logprob, *row.top_logprobs], [other.logprob, *other.top_logprobs], atol=1e-4
                )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("captured", [True, False])
def test_captured_steps_draw_what_torch_draws(checkpoint: Checkpoint, captured: bool, depth: int) -> None:
    capacity, asks = capacity_of(checkpoint), asks_of(depth)
    rig = CapturedRig(checkpoint, capacity, captured=captured, seed=depth)
    ours = Drive(rig.executor, capacity, asks, depth=depth)
    agree(ours, Drive(torch_executor(checkpoint, capacity), capacity, asks))
    assert captured == any(call.startswith("replay") for call in rig.device.calls)


@pytest.mark.parametrize("seed", range(3))
def test_two_steps_in_flight_with_preemptions_draw_the_same(checkpoint: Checkpoint, seed: int) -> None:
    capacity, asks = capacity_of(checkpoint, num_pages=20, num_seats=6), asks_of(10 + seed, 14)
    asks = [(prompt, sampling, 30) for prompt, sampling, _ in asks]
    rig = CapturedRig(checkpoint, capacity, seed=None if seed == 0 else seed)
    ours = Drive(rig.executor, capacity, asks, depth=2)
    assert ours.planner.num_preemptions > 0
    plenty = capacity_of(checkpoint)
    agree(ours, Drive(torch_executor(checkpoint, plenty), plenty, asks))


@pytest.mark.parametrize("depth", [1, 2])
def test_guesses_change_no_token(checkpoint: Checkpoint, depth: int) -> None:
    capacity = capacity_of(checkpoint)
    asks = [(prompt * 2, sampling, 16) for prompt, sampling, _ in asks_of(5) if len(prompt) < 40]
    ours = Drive(CapturedRig(checkpoint, capacity, seed=1).executor, capacity, asks, depth=depth, guesses=True)
    assert ours.planner.num_accepted_tokens > 0
    assert ours.planner.num_draft_tokens > ours.planner.num_accepted_tokens
    expected = Drive(torch_executor(checkpoint, capacity), capacity, asks)
    assert ours.tokens == expected.tokens


def test_a_seat_table_may_need_several_copies(checkpoint: Checkpoint) -> None:
    capacity, asks = capacity_of(checkpoint), asks_of(3)
    rig = CapturedRig(checkpoint, capacity, patches=5)
    agree(Drive(rig.executor, capacity, asks, depth=2), Drive(torch_executor(checkpoint, capacity), capacity, asks))


def test_steps_beyond_the_largest_bucket_run_uncaptured(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limelight.models.captured.launcher.LARGEST_CAPTURED_TOKENS", 16)
    capacity, asks = capacity_of(checkpoint), asks_of(4)
    rig = CapturedRig(checkpoint, capacity)
    agree(Drive(rig.executor, capacity, asks, depth=2), Drive(torch_executor(checkpoint, capacity), capacity, asks))
    assert "run _uncaptured_body" in rig.device.calls


def test_many_steps_may_be_in_flight(checkpoint: Checkpoint) -> None:
    """More than there are slots: the oldest result is read before its memory is used again."""
    rig = CapturedRig(checkpoint, capacity_of(checkpoint))
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=7)
    prefill = Chunk(seat=0, start=0, num_tokens=7, token_ids=tuple(PROMPT), new_pages=(4, 5), sample=True)
    waits = [rig.executor.submit(Step(number=0, chunks=(prefill,), taken=(taken,)))]
    for number in range(1, 9):
        decode = Chunk(seat=0, start=6 + number, num_tokens=1, token_ids=None, sample=True)
        waits.append(rig.executor.submit(Step(number=number, chunks=(decode,))))
    ahead = [wait()[0].token_ids[0] for wait in reversed(waits)][::-1]
    reference = Batch(torch_executor(checkpoint, rig.capacity), 8, range(64))
    assert reference.generate(reference.sit(0, PROMPT), 9) == ahead


def test_submitting_waits_for_nothing(checkpoint: Checkpoint) -> None:
    """Nor does a decode launch anything but two copies, two graphs and an event."""
    rig = CapturedRig(checkpoint, capacity_of(checkpoint))
    taken = SeatTaken(seat=0, sampling=SeatSampling(temperature=1.0), num_prompt_tokens=7)
    prefill = Chunk(seat=0, start=0, num_tokens=7, token_ids=tuple(PROMPT), new_pages=(4,), sample=True)
    decode = Chunk(seat=0, start=7, num_tokens=1, token_ids=None, sample=True)
    rig.device.calls.clear()
    done = rig.device._num_done
    waits = [rig.executor.submit(Step(number=0, chunks=(prefill,), taken=(taken,)))]
    rig.device.calls.clear()
    waits.append(rig.executor.submit(Step(number=1, chunks=(decode,))))
    assert rig.device._num_done == done
    kinds = [call.split()[0] for call in rig.device.calls]
    assert kinds == ["run", "replay", "replay", "run", "record"]
    for wait in waits:
        assert wait()[0] is not None


def test_graphs_are_captured_the_largest_first_after_a_run_of_each(checkpoint: Checkpoint) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint, num_seats=20))
    calls = [call for call in rig.device.calls if not call.startswith("record")]
    first = calls.index("run work")
    assert calls[first : first + 3] == ["run work", "synchronize", calls[first + 2]]
    assert calls.count("run work") == rig.cost.num_graphs == sum(call.startswith("capture") for call in calls)
    assert rig.progress == sorted(rig.progress)
    assert rig.progress[-1] == 1.0
    # decode 1, 2, 4, 8, 16, 20; mixed 64, 96; draw 1, 2, 4, then to 80 by eight
    assert rig.cost.num_graphs == 6 + 2 + 3 + 10


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (Chunk(seat=0, start=0, num_tokens=3, token_ids=(1, 2), new_pages=(9,)), "2 token ids for 3 rows"),
        (Chunk(seat=0, start=7, num_tokens=2, token_ids=None, new_pages=(9,)), "1 token id"),
        (Chunk(seat=0, start=7, num_tokens=2, token_ids=(1, 2)), "it needs 2"),
        (Chunk(seat=0, start=7, num_tokens=1, token_ids=(VOCAB_SIZE,)), "none of the vocabulary"),
        (Chunk(seat=0, start=7, num_tokens=1, token_ids=(-1,)), "none of the vocabulary"),
        (Chunk(seat=0, start=7, num_tokens=1, token_ids=(2**40,)), "none of the vocabulary"),
        (Chunk(seat=0, start=7, num_tokens=1, token_ids=(1,), new_pages=(64,)), "does not have"),
        (Chunk(seat=0, start=7, num_tokens=1, token_ids=(1,), new_pages=(9,) * 16), "holds at most 16"),
        (Chunk(seat=0, start=7, num_tokens=1, token_ids=(1,), sample=True, num_drafts=1), "guesses"),
        (Chunk(seat=3, start=0, num_tokens=1, token_ids=(1,), new_pages=(9,)), "never taken"),
        (Chunk(seat=8, start=0, num_tokens=1, token_ids=(1,), new_pages=(9,)), "no seat"),
    ],
)
def test_a_step_that_contradicts_the_seats_changes_nothing(checkpoint: Checkpoint, chunk: Chunk, says: str) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint))
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=7)
    prefill = Chunk(seat=0, start=0, num_tokens=7, token_ids=tuple(PROMPT), new_pages=(4,), sample=True)
    first = rig.executor.submit(Step(number=0, chunks=(prefill,), taken=(taken,)))
    other = SeatTaken(seat=1, sampling=GREEDY, num_prompt_tokens=7)
    good = Chunk(seat=1, start=0, num_tokens=1, token_ids=(1,), new_pages=(5,))
    rig.device.calls.clear()
    with pytest.raises(ValueError, match=says):
        rig.executor.submit(Step(number=1, chunks=(good, chunk), taken=(other,)))
    assert rig.device.calls == []
    with pytest.raises(ValueError, match="never taken"):
        rig.executor.submit(Step(number=1, chunks=(good,)))
    decode = Chunk(seat=0, start=7, num_tokens=1, token_ids=None, sample=True)
    second = rig.executor.submit(Step(number=2, chunks=(decode,)))
    reference = Batch(torch_executor(checkpoint, rig.capacity), 8, range(64))
    expected = reference.generate(reference.sit(0, PROMPT), 2)
    assert [wait()[0].token_ids[0] for wait in (first, second)] == expected


def test_two_chunks_or_tenants_at_one_seat_are_refused(checkpoint: Checkpoint) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), captured=False)
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=7)
    chunk = Chunk(seat=0, start=0, num_tokens=1, token_ids=(1,), new_pages=(4,))
    with pytest.raises(ValueError, match="two chunks"):
        rig.executor.submit(Step(number=0, chunks=(chunk, chunk), taken=(taken,)))
    with pytest.raises(ValueError, match="seats two"):
        rig.executor.submit(Step(number=0, chunks=(chunk,), taken=(taken, taken)))


def test_a_seat_that_is_left_leaves_nothing_to_the_next(checkpoint: Checkpoint) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), seed=2)
    batch = Batch(rig.executor, 8, range(64))
    biased = SeatSampling(temperature=0.0, logit_bias={5: 100.0}, frequency_penalty=0.5, num_logprobs=2)
    first = batch.sit(0, PROMPT, biased)
    assert batch.generate(first, 4) == [5, 5, 5, 5]
    batch.leave(first)
    second = batch.sit(0, PROMPT)
    batch.generate(second, 9)
    reference = Batch(torch_executor(checkpoint, rig.capacity), 8, range(64))
    assert second.output == reference.generate(reference.sit(0, PROMPT), 9)
    assert second.drawn[0].logprobs is None


def test_logits_that_are_not_finite_fail_their_chunk_alone(checkpoint: Checkpoint) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint))
    batch = Batch(rig.executor, 8, range(64))
    good, bad = batch.sit(0, PROMPT), batch.sit(1, PROMPT[::-1])
    batch.step((good, 7), (bad, 7))
    layers = rig.executor._launcher._passes._kv.layers  # type: ignore[union-attr]
    for layer in layers:
        layer.view(64, -1)[bad.pages[0]] = torch.nan
    batch.step((good, 1), (bad, 1))
    assert good.drawn[-1].failure is None
    assert bad.drawn[-1].token_ids == ()
    assert "not finite" in str(bad.drawn[-1].failure)


def test_more_biases_than_a_seat_holds_fail_their_sequence_alone(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limelight.models.captured.seat_settings.MAX_BIAS", 3)
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), captured=False)
    batch = Batch(rig.executor, 8, range(64))
    good = batch.sit(0, PROMPT, SeatSampling(temperature=0.0, logit_bias={1: 1.0, 2: 1.0, 3: 1.0, VOCAB_SIZE: 1.0}))
    bad = batch.sit(1, PROMPT, SeatSampling(temperature=0.0, logit_bias={1: 1.0, 2: 1.0}, blocked_token_ids=(5, 6)))
    batch.step((good, 7), (bad, 7))
    assert good.drawn[-1].failure is None
    assert "3 together" in str(bad.drawn[-1].failure)


# ---- failures


def test_out_of_memory_in_a_step_fails_that_step_and_no_later_one(checkpoint: Checkpoint) -> None:
    """Also one that was planned before the failure was known: its other sequences rely on the deltas."""
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), captured=False)
    seats = [SeatTaken(seat=seat, sampling=GREEDY, num_prompt_tokens=7) for seat in range(2)]
    chunks = [
        Chunk(seat=seat, start=0, num_tokens=7, token_ids=tuple(PROMPT), new_pages=(seat,), sample=True)
        for seat in range(2)
    ]
    first = rig.executor.submit(Step(number=0, chunks=(chunks[0],), taken=(seats[0],)))
    rig.device.before_run = lambda: out_of_memory() if rig.device.calls[-1] == "run _uncaptured_body" else None
    with pytest.raises(OutOfMemory):
        rig.executor.submit(Step(number=1, chunks=(chunks[1],), taken=(seats[1],)))
    rig.device.before_run = lambda: None
    decodes = tuple(Chunk(seat=seat, start=7, num_tokens=1, token_ids=None, sample=True) for seat in range(2))
    later = rig.executor.submit(Step(number=2, chunks=decodes))
    reference = Batch(torch_executor(checkpoint, rig.capacity), 8, range(64))
    expected = reference.generate(reference.sit(0, PROMPT), 2)
    assert [first()[0].token_ids[0], later()[0].token_ids[0]] == expected


def test_a_fault_of_the_device_fails_every_step_for_good(checkpoint: Checkpoint) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint))
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=7)
    prefill = Chunk(seat=0, start=0, num_tokens=7, token_ids=tuple(PROMPT), new_pages=(4,), sample=True)
    wait = rig.executor.submit(Step(number=0, chunks=(prefill,), taken=(taken,)))
    rig.device.fault_in_work = "an illegal memory access"
    decode = Chunk(seat=0, start=7, num_tokens=1, token_ids=None, sample=True)
    later = rig.executor.submit(Step(number=1, chunks=(decode,)))
    for waiting in (wait, later):
        with pytest.raises(EngineFailed, match="illegal memory access"):
            waiting()
    with pytest.raises(EngineFailed, match="illegal memory access"):
        rig.executor.submit(Step(number=2, chunks=(decode,)))
    rig.executor.close()
    with pytest.raises(RuntimeError, match="after close"):
        rig.executor.submit(Step(number=3, chunks=(decode,)))


def test_results_are_waited_for_on_another_thread_while_steps_are_submitted(checkpoint: Checkpoint) -> None:
    rig = CapturedRig(checkpoint, capacity_of(checkpoint), seed=3)
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=7)
    prefill = Chunk(seat=0, start=0, num_tokens=7, token_ids=tuple(PROMPT), new_pages=(4, 5, 6, 7), sample=True)
    waits = [rig.executor.submit(Step(number=0, chunks=(prefill,), taken=(taken,)))]
    results: list[Sampled] = []
    more, done = threading.Semaphore(1), threading.Event()

    def wait_for_all() -> None:
        for number in range(24):
            more.acquire()
            results.append(waits[number]()[0])
        done.set()

    thread = threading.Thread(target=wait_for_all)
    thread.start()
    for number in range(1, 24):
        decode = Chunk(seat=0, start=6 + number, num_tokens=1, token_ids=None, sample=True)
        waits.append(rig.executor.submit(Step(number=number, chunks=(decode,))))
        more.release()
    thread.join()
    assert done.is_set()
    reference = Batch(torch_executor(checkpoint, rig.capacity), 8, range(64))
    assert [result.token_ids[0] for result in results] == reference.generate(reference.sit(0, PROMPT), 24)
