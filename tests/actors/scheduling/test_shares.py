"""Fair shares, under virtual time: nobody waits for somebody else's hundred, weights are kept, nothing lies idle."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.shares import MAX_REMEMBERED, Shares
from limelight.step import Capacity, SeatSampling
from tests.actors.scheduling.test_forecast import World, true_seconds

CAPACITY = Capacity(
    num_pages=2048, page_size=16, num_seats=16, max_num_batched_tokens=256, max_model_len=2048, vocab_size=100
)


class Town(World):
    """A world whose requests belong to shares.

    Attributes:
        drawn: tokens by share.
    """

    def __init__(self, seed: int = 0, limits: Capacity = CAPACITY, depth: int = 1) -> None:
        super().__init__(seed, limits)
        self.planner = Planner(limits, prefix_caching=True, pipeline_depth=depth, step_costs=self.costs)
        self.num = 0
        self.longest_step = 0.0

    def ask(self, share: str, prompt: list[int] | int, max_tokens: int, weight: float = 1.0, priority: int = 0) -> str:
        self.num += 1
        name = f"{share}-{self.num}"
        tokens = self.prompt(prompt) if isinstance(prompt, int) else prompt
        self.planner.add(
            Sequence(
                request_id=name,
                prompt_token_ids=tuple(tokens),
                sampling=SeatSampling(temperature=0.0),
                max_tokens=max_tokens,
                share=share,
                weight=weight,
                priority=priority,
            )
        )
        return name

    def step(self) -> bool:
        before = self.now
        went = super().step()
        self.longest_step = max(self.longest_step, self.now - before)
        self.planner.check()
        return went

    def until_first_token(self, name: str) -> float:
        began = self.now
        while name not in self.first_tokens:
            assert self.step()
        return self.now - began

    def tokens_of(self, share: str) -> int:
        live = [choice for choices in self.planner._live.values() for choice in choices.values()]
        return sum(each.num_tokens - each.num_prompt_tokens for each in live if each.share == share)


def alone(length: int) -> float:
    town = Town()
    return town.until_first_token(town.ask("single", length, 10))


@pytest.mark.parametrize("length", [20, 100, 200])
@pytest.mark.parametrize("crowd_prompt", [30, 250, 1000])
def test_one_request_among_somebodys_hundred_waits_two_steps_at_most(length, crowd_prompt):
    town = Town()
    for _ in range(100):
        town.ask("crowd", crowd_prompt, 300)
    for _ in range(40):
        town.step()
    seconds = town.until_first_token(town.ask("single", length, 10))
    assert seconds <= alone(length) + 2 * max(town.longest_step, true_seconds(16, 240) * 1.2)


def test_the_same_where_pages_are_short():
    limits = Capacity(
        num_pages=120, page_size=16, num_seats=16, max_num_batched_tokens=256, max_model_len=1024, vocab_size=100
    )
    town = Town(limits=limits)
    for _ in range(50):
        town.ask("crowd", 200, 300)
    for _ in range(60):
        town.step()
    name = town.ask("single", 100, 10)
    steps = 0
    while name not in town.first_tokens:
        town.step()
        steps += 1
    assert steps <= 4


@pytest.mark.parametrize("weights", [(1.0, 3.0), (1.0, 1.0), (2.0, 1.0), (0.5, 4.0)])
def test_busy_shares_get_tokens_by_their_weights(weights):
    town = Town(1)
    got = dict.fromkeys("ab", 0)
    waiting = dict.fromkeys("ab", 0)

    def fill() -> None:
        for share, weight in zip("ab", weights, strict=True):
            while waiting[share] < 60:
                town.ask(share, town.chance.randrange(20, 120), town.chance.randrange(20, 120), weight)
                waiting[share] += 1

    observe = town.planner.complete

    def complete(number, result):
        progresses = observe(number, result)
        for progress in progresses:
            got[progress.sequence.share] += len(progress.token_ids)
            if progress.finish_reason is not None:
                waiting[progress.sequence.share] -= 1
        return progresses

    town.planner.complete = complete
    for number in range(4000):
        fill()
        town.step()
        if number == 800:
            got = dict.fromkeys("ab", 0)
    assert got["b"] / got["a"] == pytest.approx(weights[1] / weights[0], rel=0.1)


def test_what_others_do_not_want_is_used():
    town = Town()
    for _ in range(60):
        town.ask("busy", 30, 200)
    town.ask("calm", 30, 200)
    for _ in range(20):
        town.step()
    assert town.planner.num_running == 16
    while town.tokens_of("calm"):
        town.step()
    town.step()
    assert town.planner.num_running == 16


def test_idle_time_cannot_be_saved_up():
    """Who was away gets its part from now on, not what it has missed."""
    town = Town()
    for _ in range(60):
        town.ask("a", 30, 500)
    town.ask("b", 30, 1)
    for _ in range(400):
        town.step()
    for _ in range(60):
        town.ask("b", 30, 500)
    for _ in range(60):
        town.step()
    seats = {share: account.num_seats for share, account in town.planner._waiting.shares.active.items()}
    assert seats == {"a": 8, "b": 8}


def test_where_there_are_more_shares_than_seats_they_take_turns_and_nobody_is_thrown_out():
    town = Town()
    asked = [town.ask(f"share{number}", 30, 40) for number in range(100)]
    while town.step():
        pass
    assert set(town.first_tokens) == set(asked)
    assert town.planner.num_preemptions == 0


def test_priorities_come_before_shares():
    town = Town()
    for _ in range(40):
        town.ask("crowd", 30, 200, priority=-1)
    for _ in range(5):
        town.step()
    name = town.ask("single", 30, 5)
    for _ in range(50):
        town.step()
    assert name not in town.first_tokens
    assert town.planner.num_preemptions == 0


def test_cached_tokens_are_not_charged():
    town = Town()
    prompt = town.prompt(480)
    town.ask("a", prompt, 2)
    while town.step():
        pass
    for share, text in (("a", prompt), ("b", town.prompt(480))):
        town.ask(share, text, 50)
    for _ in range(12):
        town.step()
    served = {share: account.served for share, account in town.planner._waiting.shares.active.items()}
    assert served["b"] > served["a"] + 300


def test_only_those_ahead_are_remembered_and_not_too_many():
    shares = Shares()

    def sequence(share: str) -> Sequence:
        return Sequence(
            request_id="x", prompt_token_ids=(1,), sampling=SeatSampling(temperature=0.0), share=share, weight=1.0
        )

    stays = sequence("stays")
    shares.enter(stays)
    for number in range(MAX_REMEMBERED + 100):
        passing = sequence(f"s{number}")
        shares.enter(passing).served = 5.0 + number
        shares.leave(passing)
    assert len(shares._idle) == MAX_REMEMBERED
    last = sequence(f"s{MAX_REMEMBERED + 99}")
    assert shares.enter(last).served == 5.0 + MAX_REMEMBERED + 99
    assert shares.enter(sequence("new")).served == 0.0
    for each in (stays, last):
        shares.leave(each)


names = st.sampled_from(["a", "b", "c"])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(names, st.integers(1, 90), st.integers(1, 60), st.sampled_from([0.5, 1.0, 3.0]), st.integers(-1, 1)),
        min_size=2,
        max_size=25,
    ),
    st.integers(10, 40),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_whatever_comes_everybody_is_served_and_nothing_is_lost(requests, num_pages, num_seats, gap):
    limits = Capacity(
        num_pages=num_pages,
        page_size=16,
        num_seats=num_seats,
        max_num_batched_tokens=32,
        max_model_len=160,
        vocab_size=100,
    )
    town = Town(limits=limits)
    asked = []
    for share, length, max_tokens, weight, priority in requests:
        if length + max_tokens <= 16 * num_pages:
            asked.append(town.ask(share, length, max_tokens, weight, priority))
        for _ in range(gap):
            town.step()
    for _ in range(20_000):
        if not town.step():
            break
    assert not town.planner.has_work
    assert set(town.first_tokens) == set(asked)
    assert town.planner.num_free_pages == num_pages
    assert town.planner._waiting.shares.active == {}


def test_with_one_share_steps_are_the_same_whatever_its_name_and_weight():
    def steps(share: str, weight: float) -> list[object]:
        town = Town(7)
        planned: list[object] = []
        plan = town.planner.plan

        def noting():
            step = plan()
            planned.append(step)
            return step

        town.planner.plan = noting
        for _ in range(30):
            town.ask(share, town.chance.randrange(10, 400), town.chance.randrange(5, 80), weight)
            town.step()
        while town.step():
            pass
        return planned

    assert steps("a", 1.0) == steps("b", 5.0)
