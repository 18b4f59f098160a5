"""The planner as a state machine over a device that simulates memory: any order of operations keeps every promise.

Wrong sharing, reuse of a page in flight, a stale write or a bad reset would poison a history and change an output.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from limelight.actors.scheduling.prompt_lookup import Speculation
from limelight.step import SeatSampling
from tests.actors.scheduling.closed_loop import ClosedLoop, capacity

PAGE_SIZE = 4
PROMPT_WORDS = [(1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8), (9,), (5, 6, 7, 8), (2, 2)]
"""Prompts are strings of these, so that many share whole pages, part of a page, or differ by a shift."""

prompts = st.lists(st.sampled_from(PROMPT_WORDS), min_size=1, max_size=8).map(lambda words: sum(words, ()))
speculations = st.builds(Speculation, num_tokens=st.integers(1, 6), longest=st.integers(1, 3), shortest=st.just(1))
samplings = st.builds(
    SeatSampling,
    temperature=st.just(1.0),
    frequency_penalty=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 3),
    num_logprobs=st.sampled_from([None, 0]),
    blocked_token_ids=st.just((0,)),
    blocked_below_position=st.sampled_from([0, 10]),
)


class PlannerStates(RuleBasedStateMachine):
    @initialize(
        depth=st.integers(1, 2),
        num_pages=st.integers(2, 24),
        num_seats=st.integers(1, 6),
        spare_budget=st.integers(0, 20),
        max_model_len=st.sampled_from([12, 30, 60]),
        prefix_caching=st.sampled_from([True, True, False]),
        vocab_size=st.sampled_from([16, 16, 2]),
        speculation=st.none() | speculations,
    )
    def start(self, depth, num_pages, num_seats, spare_budget, max_model_len, prefix_caching, vocab_size, speculation):
        limits = capacity(
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            num_seats=num_seats,
            budget=num_seats + spare_budget,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
        )
        self.loop = ClosedLoop(limits, depth=depth, prefix_caching=prefix_caching, speculation=speculation)
        self.num_added = 0

    @rule(
        prompt=prompts,
        num_choices=st.integers(1, 3),
        sampling=samplings,
        max_tokens=st.sampled_from([1, 2, 7, 20, None]),
        stop_token_ids=st.sampled_from([frozenset(), frozenset({0}), frozenset({0, 3, 5})]),
        priority=st.integers(-1, 1),
        cache_salt=st.sampled_from([None, None, "", "a"]),
    )
    def add(self, prompt, num_choices, sampling, max_tokens, stop_token_ids, priority, cache_salt):
        limits = self.loop.capacity
        longest = min(limits.max_model_len - 1, limits.num_pages * limits.page_size - 1)
        for index in range(num_choices):
            self.loop.add(
                f"request-{self.num_added}",
                [token % limits.vocab_size for token in prompt[:longest]],
                index=index,
                sampling=sampling,
                max_tokens=max_tokens,
                stop_token_ids=stop_token_ids,
                priority=priority,
                cache_salt=cache_salt,
            )
        self.num_added += 1

    @rule(number=st.integers(0, 30), index=st.sampled_from([None, 0, 1]))
    def cancel(self, number, index):
        self.loop.cancel(f"request-{number}", index)

    @rule(failing=st.sampled_from([False] * 7 + [True]))
    def plan(self, failing):
        self.loop.plan(fails=failing)

    @precondition(lambda self: self.loop.submitted)
    @rule()
    def answer(self):
        self.loop.answer()

    @rule()
    def answer_newest_failure(self):
        self.loop.answer_newest_failure()

    @rule(num_steps=st.integers(1, 8))
    def go_on(self, num_steps):
        for _ in range(num_steps):
            if self.loop.plan() is None and self.loop.submitted:
                self.loop.answer()

    @invariant()
    def counts_agree(self):
        if hasattr(self, "loop"):
            planner = self.loop.planner
            assert planner.num_running + planner.num_waiting == len(self.loop.live)
            assert planner.num_in_flight == len(self.loop.submitted)
            assert planner.has_work == bool(self.loop.live or self.loop.submitted)

    def teardown(self):
        if hasattr(self, "loop"):
            self.loop.run()


TestPlannerStates = PlannerStates.TestCase
TestPlannerStates.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("depth", [1, 2])
def test_fail_all_ends_everything_and_leaves_an_empty_planner(depth):
    loop = ClosedLoop(capacity(page_size=4, num_pages=12, budget=16), depth=depth)
    for number in range(10):
        loop.add(f"r{number}", [1, 2, 3, 4, 5, 6, number])
    for _ in range(depth):
        loop.plan()
    lost = loop.planner.fail_all()
    assert {sequence.request_id for sequence in lost} == {f"r{number}" for number in range(10)}
    loop.planner.check()
    assert not loop.planner.has_work
    assert loop.planner.num_cached_pages == 0
    assert loop.planner.num_free_pages == 12
    assert loop.planner.plan() is None
