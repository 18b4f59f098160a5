"""What steps cost is learnt from noisy steps, kept while other kinds come, and follows a device that changes."""

import random

import pytest

from limelight.actors.scheduling.step_costs import StepCosts


def learn(costs, steps, price=lambda decodes, tokens: 0.004 + 0.0003 * decodes + 0.00002 * tokens, seed=1, most=32):
    chance = random.Random(seed)
    for _ in range(steps):
        decodes, tokens = chance.randrange(1, most), chance.choice([0, 0, 16, 128, 512])
        costs.observe(decodes, tokens, price(decodes, tokens) * chance.uniform(0.9, 1.1))


@pytest.mark.parametrize(("decodes", "tokens"), [(1, 0), (30, 0), (0, 512), (8, 128), (31, 500)])
def test_costs_are_learnt_within_a_fifth(decodes, tokens):
    costs = StepCosts()
    learn(costs, 500)
    assert costs.seconds(decodes, tokens) == pytest.approx(0.004 + 0.0003 * decodes + 0.00002 * tokens, rel=0.2)


def test_tokens_within_a_time_are_those_that_take_it():
    costs = StepCosts()
    learn(costs, 500)
    tokens = costs.prompt_tokens_within(0.02, 8)
    assert costs.seconds(8, tokens) == pytest.approx(0.02, rel=0.01)
    assert costs.prompt_tokens_within(0.001, 8) == 0


def test_nothing_is_said_before_eight_steps():
    costs = StepCosts()
    for _ in range(7):
        costs.observe(1, 8, 0.01)
    assert (costs.seconds(1, 8), costs.prompt_tokens_within(1.0, 0)) == (0.0, None)
    costs.observe(1, 8, 0.01)
    assert costs.seconds(1, 8) > 0


def test_an_hour_of_decodes_does_not_wear_out_what_is_known_of_prompts():
    costs = StepCosts()
    learn(costs, 300)
    before = costs.seconds(4, 512) - costs.seconds(4, 0)
    for _ in range(100_000):
        costs.observe(4, 0, 0.0052)
    assert costs.seconds(4, 512) - costs.seconds(4, 0) == before
    assert costs.seconds(4, 0) == pytest.approx(0.0052)
    assert costs.seconds(20, 0) > costs.seconds(4, 0)


def test_a_device_that_becomes_slower_is_followed():
    costs = StepCosts()
    learn(costs, 300)
    learn(costs, 300, lambda decodes, tokens: 0.02 + 0.001 * decodes + 0.0001 * tokens, seed=2)
    assert costs.seconds(16, 512) == pytest.approx(0.02 + 0.016 + 0.0512, rel=0.25)


def test_one_step_that_stalls_changes_little():
    costs = StepCosts()
    learn(costs, 300)
    before = costs.seconds(16, 0)
    costs.observe(16, 0, 30.0)
    assert costs.seconds(16, 0) < 2 * before


def test_odd_steps_give_no_nonsense():
    costs = StepCosts()
    chance = random.Random(3)
    for _ in range(2000):
        costs.observe(chance.choice([0, 0, 1, 300]), chance.choice([0, 1, 8192]), chance.choice([0.0, 1e-7, 0.5]))
        for decodes, tokens in ((0, 0), (1, 0), (256, 8192)):
            assert 0 <= costs.seconds(decodes, tokens) < 1e4
        assert (costs.prompt_tokens_within(0.01, 1) or 0) >= 0
