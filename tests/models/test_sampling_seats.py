"""Sampling settings at the seats: what a row draws with, and that a new tenant inherits nothing."""

import math
from typing import Any

import pytest
import torch

from limelight.kernels.interface import SamplingBatch
from limelight.models.drawing import LEAST_REPETITION_PENALTY
from limelight.models.sampling_seats import SamplingSeats
from limelight.step import SeatSampling, SeatTaken

VOCAB_SIZE = 12


def table(*takes: SeatTaken) -> SamplingSeats:
    seats = SamplingSeats(6, VOCAB_SIZE, "cpu")
    for taken in takes:
        seats.take(taken)
    return seats


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


def bias_of(batch: SamplingBatch) -> list[tuple[int, int, float]]:
    return list(zip(batch.bias_rows.tolist(), batch.bias_token_ids.tolist(), batch.bias_values.tolist(), strict=True))


def test_rows_get_the_settings_of_their_seats() -> None:
    seats = table(
        taken(4, temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, seed=-7),
        taken(1, temperature=0.0, presence_penalty=1.0, frequency_penalty=-2.0, repetition_penalty=1.5, seed=2**62),
    )
    batch = seats.gather([1, 4], [10, 20])
    assert batch.temperature.tolist() == [0.0, 0.5]
    assert batch.top_p.tolist() == [1.0, 0.25]
    assert batch.top_k.tolist() == [0, 3]
    assert batch.min_p.tolist() == [0.0, 0.125]
    assert batch.presence_penalty.tolist() == [1.0, 0.0]
    assert batch.frequency_penalty.tolist() == [-2.0, 0.0]
    assert batch.repetition_penalty.tolist() == [1.5, 1.0]
    assert batch.seeds.tolist() == [2**62, -7]
    assert batch.positions.tolist() == [10, 20]
    assert batch.num_logprobs is None
    assert bias_of(batch) == []


@pytest.mark.parametrize(("given", "used"), [(0.0, 0.0), (9e-6, 0.0), (1e-5, 0.01), (0.005, 0.01), (0.02, 0.02)])
def test_tiny_temperatures_are_greedy_or_raised(given: float, used: float) -> None:
    batch = table(taken(0, temperature=given)).gather([0], [1])
    assert batch.temperature.tolist() == pytest.approx([used])


def test_extreme_settings_are_brought_into_range() -> None:
    batch = table(taken(0, top_k=-1, repetition_penalty=1e-300), taken(1, top_k=2**63 - 1)).gather([0, 1], [1, 1])
    assert batch.top_k.tolist() == [0, VOCAB_SIZE]
    assert batch.repetition_penalty.tolist() == pytest.approx([LEAST_REPETITION_PENALTY, 1.0])


def test_bias_and_blocked_tokens_name_their_rows() -> None:
    seats = table(
        taken(2, logit_bias={3: 1.5, 4: -100.0}, blocked_token_ids=(4, 5), blocked_below_position=8),
        taken(0, logit_bias={9: 2.0}),
        taken(1),
    )
    assert bias_of(seats.gather([1, 2, 0], [7, 7, 7])) == [
        (1, 3, 1.5),
        (1, 4, -100.0),
        (1, 4, -math.inf),
        (1, 5, -math.inf),
        (2, 9, 2.0),
    ]


def test_tokens_are_blocked_below_a_position_only() -> None:
    seats = table(taken(0, blocked_token_ids=(5,), blocked_below_position=8))
    assert bias_of(seats.gather([0], [7])) == [(0, 5, -math.inf)]
    assert bias_of(seats.gather([0], [8])) == []


def test_ids_outside_the_vocabulary_have_no_effect() -> None:
    seats = table(
        taken(0, logit_bias={VOCAB_SIZE: 1.0, 10**9: 2.0}, blocked_token_ids=(VOCAB_SIZE,), blocked_below_position=99)
    )
    assert bias_of(seats.gather([0], [1])) == []


def test_counts_start_from_the_tokens_so_far_and_follow_the_drawn_ones() -> None:
    seats = table(taken(3, prompt=(1, 1, 2), output=(5, 5, 6), presence_penalty=1.0), taken(0))
    seats.count_drawn([0, 3], torch.tensor([7, 6]))
    batch = seats.gather([0, 3], [1, 1])
    assert batch.penalty_rows.tolist() == [1]
    assert batch.prompt_mask is not None
    assert batch.output_counts is not None
    assert batch.prompt_mask[0].nonzero().flatten().tolist() == [1, 2]
    assert batch.output_counts[0].tolist() == [0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0]


def test_only_penalised_seats_have_counts() -> None:
    batch = table(taken(0), taken(1)).gather([0, 1], [1, 1])
    assert batch.prompt_mask is None
    assert batch.output_counts is None


def test_counts_of_many_seats_stay_apart() -> None:
    seats = table(*(taken(seat, output=(seat,) * (seat + 1), frequency_penalty=1.0) for seat in range(6)))
    seats.release(2)
    seats.take(taken(2, prompt=(11,), frequency_penalty=1.0))
    batch = seats.gather([5, 2, 0], [1, 1, 1])
    assert batch.output_counts is not None
    assert batch.prompt_mask is not None
    assert batch.output_counts.sum(1).tolist() == [6, 0, 1]
    assert batch.prompt_mask.sum(1).tolist() == [0, 1, 0]


def test_a_new_tenant_inherits_nothing_even_without_a_release() -> None:
    seats = table(
        taken(
            0,
            prompt=(1,),
            output=(2,),
            temperature=0.5,
            top_k=3,
            top_p=0.5,
            min_p=0.5,
            repetition_penalty=2.0,
            seed=9,
            num_logprobs=4,
            logit_bias={3: 1.0},
            blocked_token_ids=(4,),
            blocked_below_position=100,
        ),
        taken(0),
    )
    fresh = table(taken(0)).gather([0], [1])
    batch = seats.gather([0], [1])
    for name in SamplingBatch.__struct_fields__:
        ours, expected = getattr(batch, name), getattr(fresh, name)
        assert torch.equal(ours, expected) if isinstance(ours, torch.Tensor) else ours == expected, name


def test_the_row_that_wants_most_logprobs_decides() -> None:
    seats = table(taken(0, num_logprobs=0), taken(1, num_logprobs=5), taken(2))
    assert seats.gather([2], [1]).num_logprobs is None
    assert seats.gather([2, 0], [1, 1]).num_logprobs == 0
    assert seats.gather([0, 1, 2], [1, 1, 1]).num_logprobs == 5


def test_an_empty_seat_cannot_draw() -> None:
    seats = table(taken(0))
    seats.release(0)
    with pytest.raises(ValueError, match="seat 0 draws a token but was never taken"):
        seats.gather([0], [1])
