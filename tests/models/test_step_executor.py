"""Steps through the whole executor on a tiny model: results, penalties, log-probabilities, failures, global state."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from limelight.models.checkpoint import Checkpoint
from limelight.models.recorded_step_executor import RecordedStepExecutor
from limelight.step import Chunk, SeatSampling, SeatTaken, Step
from tests.models.sequences import GREEDY, Batch
from tests.models.tiny_models import VOCAB_SIZE, Rig, c_kernels, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PROMPT = [5, 17, 80, 3, 3, 41, 9]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(tiny_llama(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["in C", "torch"])
def make_rig(checkpoint: Checkpoint, request: pytest.FixtureRequest) -> Callable[[], Rig]:
    """Makes an executor of either kind."""
    return lambda: Rig(checkpoint, kernels=c_kernels() if request.param == "in C" else None)


@pytest.fixture
def rig(make_rig: Callable[[], Rig]) -> Rig:
    return make_rig()


@pytest.fixture
def batch(rig: Rig) -> Batch:
    return Batch(rig.executor, rig.capacity.page_size, range(rig.capacity.num_pages))


def test_chunks_that_do_not_sample_answer_none(rig: Rig) -> None:
    taken = tuple(SeatTaken(seat=seat, sampling=GREEDY, num_prompt_tokens=4) for seat in (0, 1))
    chunks = (
        Chunk(seat=0, start=0, num_tokens=3, token_ids=(1, 2, 3), new_pages=(0,)),
        Chunk(seat=1, start=0, num_tokens=2, token_ids=(1, 2), new_pages=(1,), sample=True),
    )
    first, second = rig.executor.submit(Step(number=0, chunks=chunks, taken=taken))()
    assert first is None
    assert second is not None
    assert second.logprobs is None
    assert second.token_ids == (int(rig.logits[0].argmax()),)


def test_a_step_of_deltas_alone_is_answered(rig: Rig) -> None:
    assert rig.executor.submit(Step(number=0, chunks=(), released=(0, 3)))() == ()


def test_the_result_may_be_waited_for_on_another_thread(rig: Rig) -> None:
    taken = SeatTaken(seat=0, sampling=SeatSampling(temperature=1.0, num_logprobs=2), num_prompt_tokens=1)
    chunk = Chunk(seat=0, start=0, num_tokens=1, token_ids=(1,), new_pages=(0,), sample=True)
    wait = rig.executor.submit(Step(number=0, chunks=(chunk,), taken=(taken,)))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(wait()))
    thread.start()
    thread.join()
    assert len(results[0][0].token_ids) == 1


def test_a_step_may_be_submitted_before_the_last_one_is_waited_for(make_rig: Callable[[], Rig]) -> None:
    """Depth 2: a decode chunk reads the token from its seat, which the host has not seen yet."""
    rig = make_rig()
    taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=len(PROMPT))
    prefill = Chunk(seat=0, start=0, num_tokens=7, token_ids=tuple(PROMPT), new_pages=(4,), sample=True)
    waits = [rig.executor.submit(Step(number=0, chunks=(prefill,), taken=(taken,)))]
    for number in range(1, 5):
        new_pages = (5,) if number == 2 else ()
        decode = Chunk(seat=0, start=6 + number, num_tokens=1, token_ids=None, new_pages=new_pages, sample=True)
        waits.append(rig.executor.submit(Step(number=number, chunks=(decode,))))
    ahead = [wait()[0].token_ids[0] for wait in waits]
    reference = Batch(make_rig().executor, 8, range(64))
    assert reference.generate(reference.sit(0, PROMPT), 5) == ahead


@pytest.mark.parametrize(
    "penalties", [{"repetition_penalty": 1e5}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}]
)
def test_penalties_follow_the_tokens_as_they_are_drawn(rig: Rig, batch: Batch, penalties: dict[str, float]) -> None:
    sequence = batch.sit(2, PROMPT, SeatSampling(temperature=0.0, **penalties))
    other = batch.sit(3, PROMPT)
    batch.step((other, 7), (sequence, 7))
    for _ in range(30):
        counts = np.bincount(sequence.output[:-1], minlength=VOCAB_SIZE)
        logits = rig.logits[1].double().numpy()
        if "repetition_penalty" in penalties:
            seen = (counts > 0) | np.isin(np.arange(VOCAB_SIZE), PROMPT)
            logits = np.where(seen, np.where(logits > 0, logits / 1e5, logits * 1e5), logits)
        logits = logits - 2.0 * counts * ("frequency_penalty" in penalties)
        logits = logits - 2.0 * (counts > 0) * ("presence_penalty" in penalties)
        assert sequence.output[-1] == int(logits.argmax())
        batch.step((other, 1), (sequence, 1))
    assert sequence.output != other.output


def test_penalties_go_on_after_a_preemption(batch: Batch) -> None:
    sampling = SeatSampling(temperature=0.0, frequency_penalty=2.0, presence_penalty=1.0)
    whole = batch.sit(0, PROMPT, sampling)
    batch.generate(whole, 24)
    first = batch.sit(1, PROMPT, sampling)
    batch.generate(first, 11)
    batch.leave(first)
    again = batch.sit(4, PROMPT, sampling, output=first.output)
    batch.generate(again, 24)
    assert again.output == whole.output


def test_seeded_noise_is_the_same_at_another_seat_and_after_a_preemption(batch: Batch) -> None:
    sampling = SeatSampling(temperature=1.5, seed=1234)
    whole = batch.sit(0, PROMPT, sampling)
    batch.generate(whole, 20)
    first = batch.sit(1, PROMPT, sampling)
    batch.generate(first, 9)
    batch.leave(first)
    again = batch.sit(6, PROMPT, sampling, output=first.output)
    batch.generate(again, 20)
    other_seed = batch.sit(7, PROMPT, SeatSampling(temperature=1.5, seed=1235))
    batch.generate(other_seed, 20)
    assert again.output == whole.output
    assert other_seed.output != whole.output


def test_blocked_tokens_come_once_their_position_is_reached(batch: Batch) -> None:
    free = batch.sit(0, PROMPT)
    batch.generate(free, 1)
    favourite = free.output[0]
    blocking = SeatSampling(
        temperature=0.0, logit_bias={favourite: 100.0}, blocked_token_ids=(favourite,), blocked_below_position=10
    )
    sequence = batch.sit(1, PROMPT, blocking)
    batch.generate(sequence, 6)
    assert favourite not in sequence.output[:3]  # positions 7, 8 and 9
    assert sequence.output[3:] == [favourite] * 3


def test_each_sequence_gets_the_logprobs_that_it_asked_for(rig: Rig, batch: Batch) -> None:
    wants = [None, 0, 3]
    sequences = [
        batch.sit(seat, PROMPT, SeatSampling(temperature=0.7, seed=seat, num_logprobs=wanted))
        for seat, wanted in enumerate(wants)
    ]
    batch.step(*((sequence, 7) for sequence in sequences))
    exact = rig.logits[0].double().log_softmax(-1)
    nothing, drawn_only, three = (sequence.drawn[0] for sequence in sequences)
    assert nothing.logprobs is None
    assert drawn_only.logprobs is not None
    assert drawn_only.logprobs[0].top_token_ids == ()
    assert drawn_only.logprobs[0].logprob == pytest.approx(float(exact[drawn_only.token_ids[0]]), abs=1e-5)
    assert three.logprobs is not None
    assert three.logprobs[0].top_token_ids == tuple(exact.topk(3).indices.tolist())
    assert three.logprobs[0].top_logprobs == pytest.approx(exact.topk(3).values.tolist(), abs=1e-5)


def test_logits_that_are_not_finite_fail_their_own_sequence_and_nobody_elses(rig: Rig, batch: Batch) -> None:
    healthy, broken = batch.sit(0, PROMPT), batch.sit(1, PROMPT)
    batch.step((healthy, 7), (broken, 7))
    rig.spoil(broken.pages[0])
    batch.step((broken, 1), (healthy, 1))
    assert broken.drawn[-1].token_ids == ()
    assert "not finite in step 1" in (broken.drawn[-1].failure or "")
    assert healthy.drawn[-1].failure is None
    batch.leave(broken)
    batch.generate(healthy, 8)
    again = batch.sit(1, PROMPT)
    assert batch.generate(again, 8) == healthy.output


def test_a_step_that_raises_leaves_the_other_seats_alone(rig: Rig, batch: Batch) -> None:
    undisturbed = batch.sit(0, PROMPT)
    batch.generate(undisturbed, 8)
    sequence = batch.sit(1, PROMPT)
    batch.generate(sequence, 3)
    taken = SeatTaken(seat=5, sampling=GREEDY, num_prompt_tokens=1)
    faulty = {
        "no such token": Chunk(seat=5, start=0, num_tokens=1, token_ids=(VOCAB_SIZE,), new_pages=(60,), sample=True),
        "too few tokens": Chunk(seat=5, start=0, num_tokens=3, token_ids=(1,), new_pages=(60,), sample=True),
        "no page": Chunk(seat=5, start=0, num_tokens=1, token_ids=(1,), sample=True),
        "no such seat": Chunk(seat=50, start=0, num_tokens=1, token_ids=(1,), new_pages=(60,), sample=True),
        "nobody there": Chunk(seat=6, start=0, num_tokens=1, token_ids=(1,), new_pages=(60,), sample=True),
    }
    for what, chunk in faulty.items():
        with pytest.raises((ValueError, IndexError)):
            rig.executor.submit(Step(number=100, chunks=(chunk,), taken=(taken,)))()
            pytest.fail(what)
    assert batch.generate(sequence, 8) == undisturbed.output


def test_a_closed_executor_runs_nothing_more(rig: Rig) -> None:
    rig.executor.close()
    with pytest.raises(RuntimeError, match=r"step 4 was submitted after close\(\)"):
        rig.executor.submit(Step(number=4, chunks=()))


def test_closing_gives_weights_pages_and_the_memory_of_steps_back(checkpoint: Checkpoint) -> None:
    rig = Rig(checkpoint, kernels=c_kernels())
    executor = rig.executor
    assert isinstance(executor, RecordedStepExecutor)
    assert executor._plain is not None
    program = executor._plain.program
    memory, kept = program.memory, list(program.kept)
    # Packed matrices are pieces of larger memory.
    arrays = [array for array in kept if isinstance(array, np.ndarray)]
    weights = [array for array in arrays if array.dtype == np.uint8 and array.base is not None]
    references = [weakref.ref(array) for array in (memory, *weights, *rig.kv.layers)]
    assert len(references) > 10
    executor.close()
    del program, memory, kept, arrays, weights, rig
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    with pytest.raises(RuntimeError, match=r"submitted after close\(\)"):
        executor.submit(Step(number=4, chunks=()))


def test_torch_is_left_as_it_was(make_rig: Callable[[], Rig]) -> None:
    def state() -> tuple[object, ...]:
        return (
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_rng_state().tolist(),
            torch.are_deterministic_algorithms_enabled(),
        )

    before = state()
    rig = make_rig()
    batch = Batch(rig.executor, rig.capacity.page_size, range(rig.capacity.num_pages))
    batch.generate(batch.sit(0, PROMPT, SeatSampling(temperature=1.0, top_p=0.5)), 3)
    assert state() == before
