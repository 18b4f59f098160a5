"""Forecasts against what then happens, under virtual time: arrivals at random, steps that take what they take."""

import random
from statistics import median

import pytest

from limelight.actors.scheduling.forecast import Outlook, check_deadlines, check_queue
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.step_costs import StepCosts, StepLoad, context_of
from limelight.errors import DeadlineExceeded, Overloaded
from limelight.generation import Deadlines
from limelight.step import Capacity, Sampled, SeatSampling, Step

CAPACITY = Capacity(
    num_pages=2048, page_size=16, num_seats=16, max_num_batched_tokens=256, max_model_len=2048, vocab_size=100
)


def true_seconds(num_decodes: int, num_prompt_tokens: int) -> float:
    return 0.006 + 0.0004 * num_decodes + 0.00005 * num_prompt_tokens


class World:
    """A planner, a clock, and a device that takes its time.

    Attributes:
        first_tokens: request id -> when it had its first token.
    """

    def __init__(self, seed: int, capacity: Capacity = CAPACITY) -> None:
        self.chance = random.Random(seed)
        self.costs = StepCosts()
        self.planner = Planner(capacity, prefix_caching=True, pipeline_depth=1, step_costs=self.costs)
        self.now = 0.0
        self.first_tokens: dict[str, float] = {}

    def true_seconds(self, load: StepLoad) -> float:
        return true_seconds(load.num_decodes, load.num_prompt_tokens)

    def sequence(self, name: str, prompt: list[int], max_tokens: int) -> Sequence:
        return Sequence(
            request_id=name,
            prompt_token_ids=tuple(prompt),
            sampling=SeatSampling(temperature=0.0),
            max_tokens=max_tokens,
        )

    def prompt(self, length: int) -> list[int]:
        return [self.chance.randrange(100) for _ in range(length)]

    def step(self) -> bool:
        """One step; False if there is nothing to do."""
        step = self.planner.plan()
        if step is None:
            return False
        load = load_of(step)
        seconds = self.true_seconds(load) * self.chance.uniform(0.85, 1.2)
        self.now += seconds
        self.costs.observe(load, seconds)
        for progress in self.planner.complete(step.number, drawn(step)):
            if progress.token_ids:
                self.first_tokens.setdefault(progress.sequence.request_id, self.now)
        return True


def load_of(step: Step) -> StepLoad:
    decodes = [chunk.start for chunk in step.chunks if chunk.num_tokens == 1]
    prompts = [(chunk.start, chunk.num_tokens) for chunk in step.chunks if chunk.num_tokens != 1]
    return StepLoad(
        len(decodes), sum(tokens for _, tokens in prompts), sum(decodes), sum(context_of(*prompt) for prompt in prompts)
    )


def drawn(step: Step) -> tuple[Sampled | None, ...]:
    return tuple(Sampled((1,)) if chunk.sample else None for chunk in step.chunks)


def busy_afternoon(seed: int, load: float, num_requests: int = 1500) -> list[tuple[float, float]]:
    """(forecast, truth) of the seconds to the first token of requests that come at random, `load` times what fits."""
    world = World(seed)
    chance = world.chance
    mean_gap = (160 * 0.00005 + 60 * true_seconds(16, 0) / 16 + 0.003) / load
    came: dict[str, tuple[float, float]] = {}
    next_at = 0.0
    for number in range(num_requests):
        while world.now < next_at:
            if not world.step():
                world.now = next_at
        name = f"r{number}"
        sequence = world.sequence(name, world.prompt(chance.randrange(20, 300)), round(chance.gauss(60, 15)) % 120 + 1)
        outlook = world.planner.outlook([sequence])
        world.planner.add(sequence)
        came[name] = (world.now, outlook.first_token_seconds)
        next_at += chance.expovariate(1 / mean_gap)
    while world.step():
        pass
    return [(said, world.first_tokens[name] - at) for name, (at, said) in list(came.items())[50:]]


@pytest.mark.parametrize("seed", range(3))
def test_in_a_full_house_forecasts_are_right_within_a_third(seed):
    pairs = busy_afternoon(seed, load=1.3)
    waited = [(said, truth) for said, truth in pairs if truth > 0.2]
    assert len(waited) > 500
    assert median(abs(said - truth) / truth for said, truth in waited) < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_who_is_refused_for_a_deadline_would_have_missed_it(seed):
    right = wrong = missed = 0
    chance = random.Random(seed)
    for load in (0.7, 1.1, 1.5):
        for said, truth in busy_afternoon(seed, load):
            limit = 1000 * chance.choice([0.05, 0.1, 0.3, 1.0, 3.0])
            try:
                check_deadlines(Outlook(0, 0, 0.0, said), Deadlines(max_ttft_ms=limit), 0.0)
            except DeadlineExceeded:
                right += truth * 1000 > limit
                wrong += truth * 1000 <= limit
            else:
                missed += truth * 1000 > 3 * limit + 100
    assert right > 200
    assert right / (right + wrong) >= 0.9
    assert missed < right


def test_nothing_is_forecast_before_anything_is_known():
    world = World(0)
    sequence = world.sequence("a", world.prompt(500), 10)
    outlook = world.planner.outlook([sequence])
    assert (outlook.queue_seconds, outlook.first_token_seconds) == (0.0, 0.0)
    check_deadlines(outlook, Deadlines(max_queue_ms=1, max_ttft_ms=1, max_total_ms=1), 0.0)
    assert world.planner.seconds_until_free() == 0.0


def test_cached_tokens_and_what_other_choices_compute_are_not_counted():
    world = World(0)
    prompt = world.prompt(160)
    world.planner.add(world.sequence("first", prompt, 5))
    while world.step():
        pass
    choices = [world.sequence("again", prompt, 5) for _ in range(3)]
    for index, choice in enumerate(choices):
        choice.index = index
    assert world.planner.outlook(choices).num_own_tokens == 160 - 144  # the last token is computed in any case
    for choice in choices:
        world.planner.add(choice)
    fresh = world.sequence("fresh", world.prompt(100), 5)
    outlook = world.planner.outlook([fresh])
    assert (outlook.num_queued_tokens, outlook.num_own_tokens) == (16 + 2, 100)


def test_the_queue_is_never_longer_than_its_limit_but_for_one_alone():
    check_queue(Outlook(900, 0, 0.0, 0.0), 500)
    check_queue(Outlook(100, 400, 0.0, 0.0), 500)
    check_queue(Outlook(101, 400, 0.0, 0.0), None)
    with pytest.raises(Overloaded, match=r"400 prompt tokens wait and this prompt has 101 .* the limit is 500") as full:
        check_queue(Outlook(101, 400, 2.5, 3.0), 500)
    assert full.value.retry_after_seconds == 2.5


def test_a_place_is_free_when_the_shortest_answer_may_be_expected_to_end():
    world = World(0)
    for number in range(20):
        world.planner.add(world.sequence(f"warm{number}", world.prompt(30), 50))
        while world.step():
            pass
    for number, length in enumerate((50, 50, 10)):
        world.planner.add(world.sequence(f"r{number}", world.prompt(30), length))
    world.step()
    said = world.planner.seconds_until_free()
    began = world.now
    while world.planner.num_running == 3:
        world.step()
    assert said == pytest.approx(world.now - began, rel=0.4)


@pytest.mark.parametrize(
    ("elapsed", "queue", "first", "limits", "broken"),
    [
        (0.0, 0.0, 0.25, {"max_ttft_ms": 100}, "max_ttft_ms"),
        (0.0, 0.0, 0.15, {"max_ttft_ms": 10}, "max_ttft_ms"),
        (0.0, 0.0, 0.19, {"max_ttft_ms": 100}, None),
        (0.0, 0.0, 0.09, {"max_ttft_ms": 10}, None),
        (0.2, 0.0, 0.05, {"max_total_ms": 100}, "max_total_ms"),
        (0.0, 5.0, 6.0, {"max_queue_ms": 1000, "max_ttft_ms": 60_000}, "max_queue_ms"),
        (0.0, 5.0, 6.0, {"max_queue_ms": 3000}, None),
    ],
)
def test_only_what_is_late_by_far_is_refused(elapsed, queue, first, limits, broken):
    outlook = Outlook(1, 0, queue, first)
    if broken is None:
        check_deadlines(outlook, Deadlines(**limits), elapsed)
        return
    with pytest.raises(DeadlineExceeded, match="is expected") as refused:
        check_deadlines(outlook, Deadlines(**limits), elapsed)
    assert refused.value.param == broken


def test_who_was_preempted_does_not_wait_for_a_first_step():
    world = World(0)
    for number in range(2):
        world.planner.add(world.sequence(f"r{number}", world.prompt(100), 50))
    first, second = (world.planner.sequences(f"r{number}")[0] for number in range(2))
    fresh = world.sequence("fresh", world.prompt(100), 5)
    assert world.planner.outlook([fresh]).num_queued_tokens == 200
    first.was_scheduled = second.was_scheduled = True
    assert world.planner.outlook([fresh]).num_queued_tokens == 0
