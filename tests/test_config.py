"""Settings that are left out follow the device, and each other."""

import pytest

from limelight.config import CPU_SEATS, CPU_TOKENS_PER_STEP, GPU_SEATS, GPU_TOKENS_PER_STEP, EngineConfig
from limelight.errors import ConfigError


@pytest.mark.parametrize(
    ("device", "seats", "tokens"),
    [("cpu", CPU_SEATS, CPU_TOKENS_PER_STEP), ("cuda:1", GPU_SEATS, GPU_TOKENS_PER_STEP)],
)
def test_the_size_of_a_step_suits_the_device(device: str, seats: int, tokens: int) -> None:
    config = EngineConfig()
    assert (config.num_seats(device), config.tokens_per_step(device)) == (seats, tokens)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_is_set_is_kept_and_the_other_setting_fits_it(device: str) -> None:
    few_tokens = EngineConfig(max_num_batched_tokens=5)
    assert (few_tokens.num_seats(device), few_tokens.tokens_per_step(device)) == (5, 5)
    many_seats = EngineConfig(max_num_seqs=20_000)
    assert (many_seats.num_seats(device), many_seats.tokens_per_step(device)) == (20_000, 20_000)
    both = EngineConfig(max_num_seqs=3, max_num_batched_tokens=7)
    assert (both.num_seats(device), both.tokens_per_step(device)) == (3, 7)


def test_a_step_without_room_for_every_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens is 7, below max_num_seqs \(8\)"):
        EngineConfig(max_num_seqs=8, max_num_batched_tokens=7)
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 0"):
        EngineConfig(max_num_batched_tokens=0)


@pytest.mark.parametrize("seconds", [-0.1, 61.0, float("nan")])
def test_an_interval_of_streams_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"stream_interval is {seconds}"):
        EngineConfig(stream_interval=seconds)
