"""Settings that go into the memory of a recorded pass: what they become, and that a new tenant inherits nothing."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from limelight.kernels.cpu.sampling import SEAT, SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.models.drawing import LEAST_REPETITION_PENALTY
from limelight.models.recorded_sampling import RecordedSamplingSeats
from limelight.step import SeatSampling, SeatTaken

VOCAB_SIZE = 12


@pytest.fixture
def buffers() -> SamplingBuffers:
    limits = StepLimits(num_tokens=8, num_seats=6, num_sampled=6, max_pages=1, page_size=8)
    return SamplingBuffers(StepBuffers(limits), VOCAB_SIZE)


@pytest.fixture
def seats(buffers: SamplingBuffers) -> RecordedSamplingSeats:
    return RecordedSamplingSeats(buffers)


def taken(
    seat: int, prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), temperature: float = 1.0, **settings: Any
) -> SeatTaken:
    return SeatTaken(
        seat=seat,
        num_prompt_tokens=1,
        sampling=SeatSampling(temperature=temperature, **settings),
        prompt_token_ids=prompt,
        output_token_ids=output,
    )


def at(address: Any, count: Any, dtype: Any) -> Sequence[Any]:
    """Numbers that lie at an address."""
    size = int(count) * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(int(address), size), dtype).tolist()


def test_settings_go_to_their_seats(buffers: SamplingBuffers, seats: RecordedSamplingSeats) -> None:
    seats.take(taken(4, temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, seed=-7, num_logprobs=2))
    seats.take(taken(1, temperature=0.0, presence_penalty=1.0, frequency_penalty=-2.0, repetition_penalty=1.5))
    fields = ("temperature", "top_p", "top_k", "min_p", "seed", "num_logprobs")
    assert buffers.seats[4][list(fields)].tolist() == (0.5, 0.25, 3, 0.125, -7, 2)
    fields = ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty", "num_logprobs")
    assert buffers.seats[1][list(fields)].tolist() == (0.0, 1.0, -2.0, 1.5, -1)
    assert seats.settings(4).top_k == 3


@pytest.mark.parametrize(("given", "used"), [(0.0, 0.0), (9e-6, 0.0), (1e-5, 0.01), (0.005, 0.01), (0.02, 0.02)])
def test_tiny_temperatures_are_greedy_or_raised(
    buffers: SamplingBuffers, seats: RecordedSamplingSeats, given: float, used: float
) -> None:
    seats.take(taken(0, temperature=given))
    assert buffers.seats["temperature"][0] == pytest.approx(used)


@pytest.mark.parametrize(("given", "used"), [(-1, 0), (0, 0), (5, 5), (2**40, VOCAB_SIZE)])
def test_top_k_is_off_or_at_most_the_vocabulary(
    buffers: SamplingBuffers, seats: RecordedSamplingSeats, given: int, used: int
) -> None:
    seats.take(taken(0, top_k=given))
    assert buffers.seats["top_k"][0] == used


def test_a_repetition_penalty_stays_above_zero(buffers: SamplingBuffers, seats: RecordedSamplingSeats) -> None:
    seats.take(taken(0, repetition_penalty=1e-30))
    assert buffers.seats["repetition_penalty"][0] == np.float32(LEAST_REPETITION_PENALTY)


def test_tokens_outside_of_the_vocabulary_have_no_bias_and_no_block(
    buffers: SamplingBuffers, seats: RecordedSamplingSeats
) -> None:
    bias = {3: 1.5, VOCAB_SIZE: 9.0, 2**33: 9.0, 7: -2.0}
    seats.take(taken(2, logit_bias=bias, blocked_token_ids=(5, 2**40, 6), blocked_below_position=30))
    entry = buffers.seats[2]
    assert at(entry["bias_ids"], entry["num_biases"], np.int32) == [3, 7]
    assert at(entry["bias_values"], entry["num_biases"], np.float32) == [1.5, -2.0]
    assert at(entry["blocked_ids"], entry["num_blocked"], np.int32) == [5, 6]
    assert entry["blocked_below"] == 30


def test_counts_start_from_the_tokens_a_sequence_sits_down_with(
    buffers: SamplingBuffers, seats: RecordedSamplingSeats
) -> None:
    for prompt, output in (((1, 1, 2), (3, 3, 4)), ((5,), ())):
        seats.take(taken(0, prompt, output, presence_penalty=1.0))
        entry = buffers.seats[0]
        mask = at(entry["prompt_mask"], VOCAB_SIZE, np.uint8)
        counts = at(entry["output_counts"], VOCAB_SIZE, np.int32)
        assert [token for token in range(VOCAB_SIZE) if mask[token]] == sorted(set(prompt))
        assert counts == [output.count(token) for token in range(VOCAB_SIZE)]


def test_seats_with_penalties_have_counts_of_their_own_and_pass_them_on(
    buffers: SamplingBuffers, seats: RecordedSamplingSeats
) -> None:
    for seat in range(3):
        seats.take(taken(seat, presence_penalty=1.0))
    addresses = set(buffers.seats["output_counts"][:3].tolist())
    assert len(addresses) == 3
    for seat in range(3):
        seats.release(seat)
        seats.take(taken(seat + 3, presence_penalty=1.0))
    assert set(buffers.seats["output_counts"][3:].tolist()) == addresses


def test_a_new_tenant_inherits_nothing(buffers: SamplingBuffers, seats: RecordedSamplingSeats) -> None:
    seats.take(
        taken(
            3, (1,), (2,), top_k=4, seed=5, num_logprobs=6, logit_bias={1: 2.0}, blocked_token_ids=(1,),
            blocked_below_position=9, presence_penalty=1.0,
        )
    )  # fmt: skip
    seats.take(taken(3))
    expected = np.zeros((), SEAT)
    for field in ("temperature", "top_p", "repetition_penalty"):
        expected[field] = 1.0
    expected["num_logprobs"] = -1
    assert buffers.seats[3] == expected
    seats.release(3)
    with pytest.raises(ValueError, match="seat 3 draws a token but was never taken"):
        seats.settings(3)
