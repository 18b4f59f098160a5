"""Forecasts and queue positions where shares take turns, against what then happens, under virtual time."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from limelight.actors.scheduling.forecast import FAR_RATIO, FAR_SECONDS, check_deadlines
from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.shares import Shares
from limelight.actors.scheduling.turns import Turns
from limelight.errors import DeadlineExceeded
from limelight.generation import Deadlines
from limelight.step import SeatSampling
from tests.actors.scheduling.test_shares import Town


def sequence(share: str, prompt: list[int], max_tokens: int = 60, name: str = "new", priority: int = 0) -> Sequence:
    return Sequence(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=SeatSampling(temperature=0.0),
        max_tokens=max_tokens,
        share=share,
        owner=share,
        priority=priority,
    )


def crowded(crowds: tuple[str, ...] = ("crowd",), steps: int = 150, num_each: int = 100) -> Town:
    town = Town()
    for _ in range(num_each):
        for crowd in crowds:
            town.ask(crowd, 30, town.chance.randrange(40, 80))
    for _ in range(steps):
        town.step()
    assert town.planner.num_waiting > 16
    return town


def test_one_who_comes_to_somebodys_crowd_is_not_refused_for_the_crowds_queue():
    town = crowded()
    single = town.planner.outlook([sequence("single", town.prompt(50))])
    one_more = town.planner.outlook([sequence("crowd", town.prompt(50))])
    assert one_more.queue_seconds > 1.0
    assert single.first_token_seconds < 0.1
    deadlines = Deadlines(max_ttft_ms=300)
    check_deadlines(single, deadlines, 0.0)
    with pytest.raises(DeadlineExceeded):
        check_deadlines(one_more, deadlines, 0.0)
    assert town.until_first_token(town.ask("single", 50, 5)) < 0.3


def test_who_may_not_take_a_seat_back_waits_for_one():
    """Because those who run have a better priority, or because everybody has one seat only."""
    town = crowded()
    late = sequence("single", town.prompt(50), priority=1)
    assert town.planner.outlook([late]).queue_seconds > 1.0
    many = crowded(tuple(f"share{number}" for number in range(40)), steps=30, num_each=2)
    assert many.planner.outlook([sequence("new", many.prompt(50))]).queue_seconds > 0.1


def test_where_shares_compete_nobody_is_refused_who_would_have_been_in_time():
    """Three keys, of which one asks for most of what is too much. Counted by arrival, many would be."""
    town = Town()
    said: dict[str, tuple[float, float]] = {}
    next_at = 0.0
    for _ in range(500):
        while town.now < next_at:
            if not town.step():
                town.now = next_at
        share = town.chance.choices(("a", "b", "c"), (6, 3, 1))[0]
        prompt = town.prompt(town.chance.randrange(20, 300))
        max_tokens = round(town.chance.gauss(60, 15)) % 120 + 1
        outlook = town.planner.outlook([sequence(share, prompt, max_tokens)])
        said[town.ask(share, prompt, max_tokens)] = (town.now, outlook.first_token_seconds)
        next_at += town.chance.expovariate(1 / 0.048)
    while town.step():
        pass
    right = wrong = 0
    for name, (at, forecast) in said.items():
        truth = town.first_tokens[name] - at
        for limit in (0.1, 0.3, 1.0):
            refused = forecast > FAR_RATIO * limit and forecast > limit + FAR_SECONDS
            right += refused and truth > limit
            wrong += refused and truth <= limit
    assert right > 300
    assert wrong <= right / 100


def test_queue_positions_are_those_of_turns():
    town = crowded(("a", "b"), steps=60, num_each=40)
    town.ask("c", 30, 50)
    waiting = [each for each in town.planner._waiting.sequences() if not each.was_scheduled]
    foretold = sorted(waiting, key=lambda each: town.planner.prompt_progress(each.request_id).queue_position)
    assert foretold[0].share == "c"
    places = {share: [place for place, each in enumerate(foretold) if each.share == share][:10] for share in ("a", "b")}
    assert all(abs(place_a - place_b) <= 3 for place_a, place_b in zip(places["a"], places["b"], strict=True))
    seated: list[Sequence] = []
    while len(seated) < 20:
        town.step()
        seated += [each for each in waiting if each.was_scheduled and each not in seated]
    overtaken = [abs(foretold.index(each) - place) for place, each in enumerate(seated)]
    assert max(overtaken) <= 6


def test_who_has_as_much_as_it_may_is_told_when_one_of_its_own_may_end():
    town = Town()
    for number in range(20):
        town.planner.add(sequence("warm", town.prompt(30), 50, f"w{number}"))
        while town.step():
            pass
    town.planner.add(sequence("a", town.prompt(30), 50, "long"))
    town.planner.add(sequence("b", town.prompt(30), 5, "short"))
    town.step()
    planner = town.planner
    assert planner.seconds_until_free("a") > 5 * planner.seconds_until_free("b")
    assert planner.seconds_until_free() == planner.seconds_until_free("b") == planner.seconds_until_free("nobody")


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 90), st.integers(-1, 1), st.integers(0, 9)), max_size=30
    ),
    st.integers(1, 8),
)
def test_each_has_one_place_and_within_a_share_the_order_is_that_of_ranks(asked, num_seats):
    shares = Shares()
    waiting = []
    for number, (share, length, priority, served) in enumerate(asked):
        each = sequence(share, [1] * length, name=str(number))
        each.rank = (1, priority, number)
        if number % 3:
            shares.enter(each).served += served
        waiting.append(each)
    order = [each for each, _ in Turns(shares, num_seats, lambda _: 10).in_order(waiting)]
    assert sorted(each.rank[2] for each in order) == list(range(len(asked)))
    for share in "abcd":
        ranks = [each.rank for each in order if each.share == share]
        assert ranks == sorted(ranks)
    assert [each.rank[1] for each in order] == sorted(each.rank[1] for each in order)
