"""A long prompt among running answers, under virtual time: with a target it may not make their tokens late."""

from statistics import quantiles

import pytest

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.step_costs import StepLoad
from limelight.step import Capacity
from tests.actors.scheduling.test_forecast import World

CAPACITY = Capacity(
    num_pages=4096, page_size=16, num_seats=16, max_num_batched_tokens=1024, max_model_len=40_000, vocab_size=100
)


class CrowdedWorld(World):
    """Attention costs, too, and now and then others use the device for a while."""

    slowness = 1.0

    def true_seconds(self, load: StepLoad) -> float:
        if self.chance.random() < 0.01:
            self.slowness = self.chance.choice((1.0, 1.0, 1.3))
        attended = 1e-7 * load.decode_context + 1e-8 * load.prompt_context
        return self.slowness * (super().true_seconds(load) + attended)


def long_prompt_among_streams(
    target: float | None, seed: int, depth: int = 1, kind: type[World] = World
) -> tuple[list[float], float]:
    """Seconds between tokens of 8 running answers while a prompt of 30,000 tokens is read, and how long that took."""
    world = kind(seed, CAPACITY)
    world.planner = Planner(
        CAPACITY,
        prefix_caching=True,
        pipeline_depth=depth,
        step_costs=world.costs,
        target_step_seconds=target,
    )
    for number in range(4):  # what came before, from which costs are learnt
        world.planner.add(world.sequence(f"old{number}", world.prompt(700), 100))
        for _ in range(30):
            world.step()
    for number in range(8):
        world.planner.add(world.sequence(f"r{number}", world.prompt(40), 20_000))
    while len(world.first_tokens) < 12:
        world.step()
    world.planner.add(world.sequence("long", world.prompt(30_000), 1))
    began, gaps = world.now, []
    while "long" not in world.first_tokens:
        before = world.now
        world.step()
        gaps.append(world.now - before)
    return gaps, world.now - began


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "target"), [(World, 0.015), (World, 0.02), (World, 0.04), (CrowdedWorld, 0.03), (CrowdedWorld, 0.05)]
)
def test_the_time_between_tokens_keeps_to_the_target(target, seed, kind):
    gaps, _ = long_prompt_among_streams(target, seed, kind=kind)
    assert quantiles(gaps, n=100)[98] <= 1.2 * target
    assert sum(gaps) / len(gaps) > 0.7 * target  # and the prompt gets what there is


def test_without_a_target_tokens_come_as_late_as_the_budget_makes_them():
    gaps, seconds = long_prompt_among_streams(None, 1)
    assert quantiles(gaps, n=100)[50] > 0.04
    _, with_target = long_prompt_among_streams(0.04, 1)
    assert with_target < 1.5 * seconds


def test_a_target_that_cannot_be_kept_lets_the_prompt_go_on_by_a_page_a_step():
    gaps, _ = long_prompt_among_streams(0.001, 1)
    assert len(gaps) == pytest.approx(30_000 / 16, abs=2)


def test_where_nobody_waits_for_a_token_the_budget_is_all_there_is():
    world = World(1, CAPACITY)
    world.planner = Planner(
        CAPACITY, prefix_caching=True, pipeline_depth=1, step_costs=world.costs, target_step_seconds=0.001
    )
    for number in range(3):
        world.planner.add(world.sequence(f"old{number}", world.prompt(500), 20))
        while world.step():
            pass
    world.planner.add(world.sequence("alone", world.prompt(4096), 1))
    steps = 0
    while world.step():
        steps += 1
    assert steps <= 6
