"""The simulation, small: its bounds are met, none is exceeded, and shares get what is theirs."""

import pytest

from benchmarks.simulate import CAPACITY, MAX_LIVE, MAX_QUEUED_TOKENS, Town, beside_a_hundred, weights
from limelight.actors.scheduling.planner import Planner


@pytest.fixture(scope="module")
def town():
    town = Town(1500, seed=1)
    town.run()
    return town


def test_bounds_are_reached_and_never_exceeded(town):
    assert sum(town.endings.values()) == 1500
    assert MAX_LIVE - 5 < town.most["live requests"] <= MAX_LIVE
    assert MAX_QUEUED_TOKENS - 500 < town.most["queued tokens"] <= MAX_QUEUED_TOKENS
    assert town.most["seats"] == CAPACITY.num_seats


def test_requests_end_in_every_way(town):
    ways = {"whole", "cancelled", "too late", "refused: deadline", "refused: queued tokens"}
    assert ways <= town.endings.keys()


def test_a_bound_that_is_exceeded_is_noticed(monkeypatch):
    monkeypatch.setattr("benchmarks.simulate.check_queue", lambda outlook, limit: None)
    with pytest.raises(AssertionError, match="queued tokens, and the bound is"):
        Town(1500, seed=1).run()


def test_what_is_left_is_noticed(monkeypatch):
    monkeypatch.setattr(Planner, "cancel", lambda planner, name: None)
    with pytest.raises(AssertionError):
        Town(300, seed=1).run()


def test_weights_are_kept_within_a_tenth():
    assert weights(seed=1, num_steps=1500) == pytest.approx(3.0, rel=0.1)


def test_one_beside_a_hundred_waits_two_steps_longer_at_most():
    beside, alone, longest_step = beside_a_hundred(seed=1)
    assert beside <= alone + 2 * longest_step
