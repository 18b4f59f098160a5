"""Thousands of requests with cancels and failing steps on small pools: each ends once, nothing is left, outputs are
those of a solo run (`ClosedLoop` compares every token)."""

import random
from collections import Counter

import pytest

from limelight.actors.scheduling.prompt_lookup import Speculation
from limelight.generation import Pooling
from limelight.step import SeatSampling
from tests.actors.scheduling.closed_loop import ClosedLoop, capacity

NUM_REQUESTS = 1000
SYSTEM_PROMPTS = [tuple(range(20)), tuple(range(16)), (), (7, 7, 7)]


def add_random(loop: ClosedLoop, chance: random.Random, name: str, shares: str = "a") -> None:
    tail = [chance.randrange(50) for _ in range(chance.choice([1, 2, 5, 12, 25]))]
    prompt = [*chance.choice(SYSTEM_PROMPTS), *tail]
    if chance.random() < 0.2 and loop.records:
        turn = chance.choice(list(loop.records.values())[-20:])
        prompt = [*turn.sequence.token_ids[:30], *tail]
    scores = chance.random() < 0.3
    pooling = None if scores else chance.choice([*[None] * 12, Pooling.LAST, Pooling.MEAN])
    share = chance.choice(shares)
    draws = pooling is None and (not scores or chance.random() < 0.8)
    for index in range(chance.choice([1, 1, 1, 3])):
        loop.add(
            name,
            prompt,
            index=index,
            max_tokens=chance.choice([1, 3, 10, 25, None]) if draws else 0,
            scores=scores and index == 0,
            pooling=pooling,
            stop_token_ids=frozenset(chance.sample(range(50), 3)),
            sampling=SeatSampling(
                temperature=1.0, seed=index, presence_penalty=chance.choice([0.0, 0.5]), num_logprobs=0
            ),
            priority=chance.choice([0, 0, 0, 1, 5]),
            cache_salt=chance.choice([None, None, "a"]),
            share=share,
            weight={"a": 1.0, "b": 3.0, "c": 0.5}[share],
        )


GUESSES = Speculation(num_tokens=4, longest=3, shortest=1)


@pytest.mark.parametrize("speculation", [None, GUESSES])
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_request_ends_once_and_nothing_is_left(depth, prefix_caching, speculation):
    chance = random.Random(depth)
    limits = capacity(num_pages=26, page_size=4, num_seats=8, budget=24, max_model_len=90)
    loop = ClosedLoop(limits, depth=depth, prefix_caching=prefix_caching, checked=False, speculation=speculation)
    num_requests = 0
    while num_requests < NUM_REQUESTS or loop.live:
        if num_requests < NUM_REQUESTS and len(loop.live) < 40 and chance.random() < 0.5:
            add_random(loop, chance, f"r{num_requests}", "abc" if prefix_caching else "a")
            num_requests += 1
        if chance.random() < 0.03 and loop.live:
            loop.cancel(chance.choice(loop.live).sequence.request_id, chance.choice([None, 0]))
        if loop.plan(fails=chance.random() < 0.02) is None or chance.random() < 0.3:
            if chance.random() < 0.5:
                loop.answer_newest_failure()
            if loop.submitted:
                loop.answer()
        if loop.num_steps % 20 == 0:
            loop.planner.check()
    while loop.submitted:
        loop.answer()
    loop.check_empty()
    loop.planner.check()
    ends = Counter(record.ended for record in loop.records.values())
    assert ends.total() == len(loop.records)
    assert ends["finished"] > len(loop.records) / 2
    assert ends["failed"] > 50
    assert ends["cancelled"] > 50
    assert loop.planner.num_preemptions > 20
    assert (loop.planner.prefix_hits_tokens > 1000) == prefix_caching
    assert (loop.planner.num_draft_tokens > 1000) == (speculation is not None)


def test_pipeline_depth_prefix_cache_and_guesses_do_not_change_a_single_token():
    outputs = []
    for depth, prefix_caching, speculation in [
        (1, True, None),
        (2, True, None),
        (1, False, None),
        (2, False, None),
        (1, True, GUESSES),
        (2, True, GUESSES),
    ]:
        chance = random.Random(3)
        limits = capacity(num_pages=24, page_size=4, num_seats=6, budget=20, max_model_len=80)
        loop = ClosedLoop(limits, depth=depth, prefix_caching=prefix_caching, checked=False, speculation=speculation)
        for number in range(60):
            add_random(loop, chance, f"r{number}")
        loop.run()
        outputs.append({record.name: (record.tokens, record.logprobs) for record in loop.records.values()})
        assert loop.planner.num_preemptions > 0
    assert all(output == outputs[0] for output in outputs[1:])
