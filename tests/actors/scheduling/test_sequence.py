import pytest

from limelight.actors.scheduling.sequence import Sequence, seat_sampling
from limelight.generation import SamplingParams
from limelight.step import SeatSampling


def for_seat(params, stop_token_ids=frozenset()):
    return seat_sampling(params, seed=7, stop_token_ids=stop_token_ids, num_prompt_tokens=10, vocab_size=100)


def test_greedy_decoding_ignores_the_cuts():
    greedy = for_seat(SamplingParams(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1))
    assert greedy == SeatSampling(temperature=0.0, seed=7)


def test_tiny_temperatures_are_raised_and_top_k_minus_one_is_off():
    sampling = for_seat(SamplingParams(temperature=0.001, top_k=-1, top_p=0.9))
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.01, 0, 0.9)


def test_everything_else_reaches_the_seat():
    params = SamplingParams(
        min_p=0.2,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        logprobs=3,
        logit_bias={4: -5.0},
    )
    assert for_seat(params) == SeatSampling(
        temperature=1.0,
        min_p=0.2,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        seed=7,
        num_logprobs=3,
        logit_bias={4: -5.0},
    )


def test_min_tokens_blocks_stop_tokens_of_the_vocabulary_up_to_that_position():
    sampling = for_seat(SamplingParams(min_tokens=4), frozenset({9, 2, 100, 5000}))
    assert sampling.blocked_token_ids == (2, 9)
    assert sampling.blocked_below_position == 14


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(min_tokens=4)])
def test_without_min_tokens_or_stop_tokens_nothing_is_blocked(params):
    stop_token_ids = frozenset() if params.min_tokens else frozenset({9})
    assert for_seat(params, stop_token_ids).blocked_token_ids == ()


def test_a_sequence_does_not_change_the_prompt_that_it_was_made_from():
    prompt = (1, 2, 3)
    sequence = Sequence(request_id="a", prompt_token_ids=prompt, sampling=SeatSampling(temperature=0.0))
    sequence.token_ids.append(4)
    assert sequence.prompt_token_ids == prompt
    assert (sequence.num_prompt_tokens, sequence.num_tokens) == (3, 4)
