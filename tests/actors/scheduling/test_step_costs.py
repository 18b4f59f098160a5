"""What steps cost is learnt from noisy steps, kept while other kinds come, and follows a device that changes."""

import random

import pytest

from limelight.actors.scheduling.step_costs import StepCosts, StepLoad, context_of


def learn(costs, steps, price=lambda decodes, tokens: 0.004 + 0.0003 * decodes + 0.00002 * tokens, seed=1, most=32):
    chance = random.Random(seed)
    for _ in range(steps):
        decodes, tokens = chance.randrange(1, most), chance.choice([0, 0, 16, 128, 512])
        costs.observe(StepLoad(decodes, tokens), price(decodes, tokens) * chance.uniform(0.9, 1.1))


@pytest.mark.parametrize(("decodes", "tokens"), [(1, 0), (30, 0), (0, 512), (8, 128), (31, 500)])
def test_costs_are_learnt_within_a_fifth(decodes, tokens):
    costs = StepCosts()
    learn(costs, 500)
    assert costs.seconds(StepLoad(decodes, tokens)) == pytest.approx(
        0.004 + 0.0003 * decodes + 0.00002 * tokens, rel=0.2
    )


def test_tokens_within_a_time_are_those_that_take_it():
    costs = StepCosts()
    learn(costs, 500)
    tokens = costs.prompt_tokens_within(0.02, StepLoad(8, 0), 0)
    assert costs.seconds(StepLoad(8, tokens)) == pytest.approx(0.02, rel=0.1)
    assert costs.prompt_tokens_within(0.001, StepLoad(8, 0), 0) == 0


def test_nothing_is_said_before_eight_steps():
    costs = StepCosts()
    for _ in range(7):
        costs.observe(StepLoad(1, 8), 0.01)
    assert (costs.seconds(StepLoad(1, 8)), costs.prompt_tokens_within(1.0, StepLoad(0, 0), 0)) == (0.0, None)
    costs.observe(StepLoad(1, 8), 0.01)
    assert costs.seconds(StepLoad(1, 8)) > 0


def test_an_hour_of_decodes_does_not_wear_out_what_is_known_of_prompts():
    costs = StepCosts()
    learn(costs, 300)
    before = costs.seconds(StepLoad(4, 512)) - costs.seconds(StepLoad(4, 0))
    for _ in range(100_000):
        costs.observe(StepLoad(4, 0), 0.0052)
    assert costs.seconds(StepLoad(4, 512)) - costs.seconds(StepLoad(4, 0)) == pytest.approx(before, rel=1e-9)
    assert costs.seconds(StepLoad(4, 0)) == pytest.approx(0.0052)
    assert costs.seconds(StepLoad(20, 0)) > costs.seconds(StepLoad(4, 0))


def test_a_device_that_becomes_slower_is_followed():
    costs = StepCosts()
    learn(costs, 300)
    learn(costs, 300, lambda decodes, tokens: 0.02 + 0.001 * decodes + 0.0001 * tokens, seed=2)
    assert costs.seconds(StepLoad(16, 512)) == pytest.approx(0.02 + 0.016 + 0.0512, rel=0.25)


def test_one_step_that_stalls_changes_little():
    costs = StepCosts()
    learn(costs, 300)
    before = costs.seconds(StepLoad(16, 0))
    costs.observe(StepLoad(16, 0), 30.0)
    assert costs.seconds(StepLoad(16, 0)) < 2 * before


def test_odd_steps_give_no_nonsense():
    costs = StepCosts()
    chance = random.Random(3)
    for _ in range(2000):
        costs.observe(
            StepLoad(chance.choice([0, 0, 1, 300]), chance.choice([0, 1, 8192])), chance.choice([0.0, 1e-7, 0.5])
        )
        for decodes, tokens in ((0, 0), (1, 0), (256, 8192)):
            assert 0 <= costs.seconds(StepLoad(decodes, tokens)) < 1e4
        assert (costs.prompt_tokens_within(0.01, StepLoad(1, 0), 0) or 0) >= 0


def price_of_context(load):
    attended = 1e-6 * load.decode_context + 5e-7 * load.prompt_context
    return 0.004 + 0.0003 * load.num_decodes + 0.0004 * load.num_prompt_tokens + attended


def learn_contexts(costs, num_prompts, chance, slowness=lambda: 1.0):
    """Prompts of 3,000 tokens, read by and by beside decodes, some decodes alone before each."""
    for number in range(num_prompts):
        for step in range(40):
            load = StepLoad(chance.randrange(1, 9), 0, 100 * number + 20 * step)
            costs.observe(load, price_of_context(load) * chance.uniform(0.95, 1.05) * slowness())
        start = 0
        while start < 3000:
            tokens = chance.choice((32, 48, 64))
            load = StepLoad(8, tokens, 8 * (100 * number + start), context_of(start, tokens))
            costs.observe(load, price_of_context(load) * chance.uniform(0.95, 1.05) * slowness())
            start += tokens


@pytest.mark.parametrize("start", [0, 500, 1500, 2900])
def test_what_contexts_cost_is_learnt(start):
    costs = StepCosts()
    learn_contexts(costs, 6, random.Random(1))
    load = StepLoad(8, 64, 2000, context_of(start, 64))
    assert costs.seconds(load) == pytest.approx(price_of_context(load), rel=0.15)
    tokens = costs.prompt_tokens_within(0.06, StepLoad(8, 0, 2000), start)
    assert price_of_context(StepLoad(8, tokens, 2000, context_of(start, tokens))) == pytest.approx(0.06, rel=0.15)


def test_the_later_steps_are_the_shorter_they_are_planned():
    chance = random.Random(1)
    steady, uneven = StepCosts(), StepCosts()
    learn_contexts(steady, 3, chance)
    learn_contexts(uneven, 3, chance, lambda: 1.7 if chance.random() < 0.05 else 1.0)
    allowed = [costs.prompt_tokens_within(0.06, StepLoad(8, 0, 2000), 1000) for costs in (steady, uneven)]
    assert 0.3 * allowed[0] < allowed[1] < 0.8 * allowed[0]


def test_a_device_that_others_use_too_is_noticed_within_some_steps():
    costs = StepCosts()
    learn_contexts(costs, 3, random.Random(1))
    before = costs.prompt_tokens_within(0.06, StepLoad(8, 0, 2000), 1000)
    load = StepLoad(8, 32, 2000, context_of(1000, 32))
    for _ in range(8):
        costs.observe(load, 2 * price_of_context(load))
    during = costs.prompt_tokens_within(0.06, StepLoad(8, 0, 2000), 1000)
    for _ in range(15):
        costs.observe(load, price_of_context(load))
    assert during < 0.6 * before
    assert costs.prompt_tokens_within(0.06, StepLoad(8, 0, 2000), 1000) > 1.3 * during
