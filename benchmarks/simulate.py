"""A hundred thousand requests in minutes: the planner under virtual time, over a device that takes what it takes.

    python -m benchmarks.simulate --requests 100000

Requests of three shares with weights 1, 1 and 3 come at random at 1.3 times what can be done, with limits of live
requests and of queued tokens, some with deadlines; some are cancelled. After every step each bound is checked. Then two
shares that always ask for more than there is, with weights 1 and 3, and one request beside somebody's hundred.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from limelight.actors.scheduling.forecast import check_deadlines, check_queue
from limelight.actors.scheduling.planner import Planner, Progress
from limelight.actors.scheduling.sequence import Sequence as Sequence_
from limelight.actors.scheduling.step_costs import StepCosts, StepLoad, context_of
from limelight.errors import DeadlineExceeded, Overloaded
from limelight.generation import Deadlines
from limelight.step import Capacity, Sampled, SeatSampling, Step

CAPACITY = Capacity(
    num_pages=1024, page_size=16, num_seats=32, max_num_batched_tokens=256, max_model_len=2048, vocab_size=100
)
MAX_LIVE, MAX_QUEUED_TOKENS = 60, 4000
LOAD = 1.3
WEIGHTS = {"one": 1.0, "three": 3.0}
CHECK_EVERY = 97
"""Steps between two checks of all books, which cost time in proportion to all tokens."""


@dataclass
class Asked:
    """A request that was let in."""

    name: str
    came_at: float
    expected_seconds: float
    deadline_ms: float | None
    cancel_at: float | None
    first_token_at: float | None = None

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed without a token."""
        return (
            self.deadline_ms is not None
            and self.first_token_at is None
            and now > self.came_at + self.deadline_ms / 1000
        )


@dataclass
class Device:
    """A planner, a clock, and steps that take their time, up to a fifth more or less.

    Attributes:
        drawn: tokens by share.
    """

    chance: random.Random
    on_progress: Callable[[Progress], object]
    now: float = 0.0
    num_steps: int = 0
    longest_step: float = 0.0
    drawn: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.costs = StepCosts()
        self.planner = Planner(CAPACITY, prefix_caching=True, pipeline_depth=1, step_costs=self.costs)

    def sequence(self, name: str, length: int, max_tokens: int, share: str, weight: float) -> Sequence_:
        """One that is not added yet, with a prompt of its own."""
        return Sequence_(
            request_id=name,
            prompt_token_ids=tuple(self.chance.choices(range(100), k=length)),
            sampling=SeatSampling(temperature=0.0),
            max_tokens=max_tokens,
            share=share,
            weight=weight,
        )

    def step(self) -> bool:
        """One step; False if there is nothing to do."""
        step = self.planner.plan()
        if step is None:
            return False
        load = load_of(step)
        seconds = true_seconds(load) * self.chance.uniform(0.85, 1.2)
        self.now += seconds
        self.longest_step = max(self.longest_step, seconds)
        self.costs.observe(load, seconds)
        self.num_steps += 1
        drawn = tuple([Sampled((1,)) if chunk.sample else None for chunk in step.chunks])
        for progress in self.planner.complete(step.number, drawn):
            self.drawn[progress.sequence.share] += len(progress.token_ids)
            self.on_progress(progress)
        return True


def true_seconds(load: StepLoad) -> float:
    """What a step takes in the mean; nobody is told."""
    attended = 2e-7 * load.decode_context + 2e-8 * load.prompt_context
    return 0.006 + 0.0004 * load.num_decodes + 0.00005 * load.num_prompt_tokens + attended


def load_of(step: Step) -> StepLoad:
    """What a step has to do."""
    decodes = [chunk.start for chunk in step.chunks if chunk.num_tokens == 1]
    prompts = [chunk for chunk in step.chunks if chunk.num_tokens != 1]
    return StepLoad(
        len(decodes),
        sum([chunk.num_tokens for chunk in prompts]),
        sum(decodes),
        sum([context_of(chunk.start, chunk.num_tokens) for chunk in prompts]),
    )


class Town:
    """Requests that come and go.

    Attributes:
        endings: by word.
        most: the most that there was at once of what is bounded.
        errors: of forecasts of first tokens that took more than 0.2 s, as a part of the truth.
    """

    def __init__(self, num_requests: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.device = Device(self.chance, self._progressed)
        self.live: dict[str, Asked] = {}
        self.endings: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.errors: list[float] = []
        self.in_time = self.late = 0
        self._probe = self.device.sequence("probe", 1, 1, "probe", 1.0)
        self._num_requests = num_requests
        self._rate = LOAD / (150 * 0.00005 + 20 * true_seconds(StepLoad(24, 0, 24 * 160)) / 24)

    def run(self) -> None:
        """All requests, to the end of the last one.

        Raises:
            AssertionError: a bound is exceeded, or something is left.
        """
        device, due = self.device, 0.0
        for number in range(self._num_requests):
            while device.now < due:
                if not device.step():
                    device.now = due
                self._check()
            self._come(f"r{number}")
            due += self.chance.expovariate(self._rate)
        while device.step():
            self._check()
        device.planner.check()
        assert not self.live, "requests have no ending"
        assert device.planner.num_free_pages == CAPACITY.num_pages, "pages are left"
        assert device.planner.num_free_seats == CAPACITY.num_seats, "seats are left"
        assert sum(self.endings.values()) == self._num_requests, "requests have two endings"

    def _come(self, name: str) -> None:
        chance, planner = self.chance, self.device.planner
        if len(self.live) >= MAX_LIVE:
            self.endings["refused: live requests"] += 1
            return
        share, weight = chance.choice((("a", 1.0), ("b", 1.0), ("c", 3.0)))
        length = chance.choice((20, 60, 100, 200, 370))
        sequence = self.device.sequence(name, length, min(200, int(chance.expovariate(1 / 20)) + 1), share, weight)
        deadline = chance.choice((None, None, 100.0, 500.0, 2000.0))
        outlook = planner.outlook([sequence])
        try:
            check_queue(outlook, MAX_QUEUED_TOKENS)
            check_deadlines(outlook, Deadlines(max_ttft_ms=deadline), 0.0)
        except Overloaded:
            self.endings["refused: queued tokens"] += 1
            return
        except DeadlineExceeded:
            self.endings["refused: deadline"] += 1
            return
        planner.add(sequence)
        now = self.device.now
        cancel_at = now + chance.uniform(0, 2) if chance.random() < 0.1 else None
        self.live[name] = Asked(name, now, outlook.first_token_seconds, deadline, cancel_at)

    def _progressed(self, progress: Progress) -> None:
        name = progress.sequence.request_id
        assert name in self.live, "a request is answered after its end"
        asked = self.live[name]
        if asked.first_token_at is None:
            asked.first_token_at = self.device.now
            took = asked.first_token_at - asked.came_at
            if took > 0.2 and asked.expected_seconds:
                self.errors.append(abs(asked.expected_seconds - took) / took)
            self.in_time += asked.deadline_ms is not None
        if progress.finish_reason is not None:
            del self.live[name]
            self.endings["whole"] += 1

    def _check(self) -> None:
        device, planner = self.device, self.device.planner
        for asked in list(self.live.values()):
            if asked.cancel_at is not None and asked.cancel_at <= device.now:
                self._end(asked, "cancelled")
            elif asked.is_late(device.now):
                self.late += 1
                self._end(asked, "too late")
        queued = planner.outlook([self._probe]).num_queued_tokens
        now = {
            "live requests": (len(self.live), MAX_LIVE),
            "queued tokens": (queued, MAX_QUEUED_TOKENS),
            "pages": (CAPACITY.num_pages - planner.num_free_pages, CAPACITY.num_pages),
            "seats": (planner.num_running, CAPACITY.num_seats),
        }
        for name, (number, bound) in now.items():
            assert number <= bound, f"{number} {name}, and the bound is {bound}"
            self.most[name] = max(self.most[name], number)
        if device.num_steps % CHECK_EVERY == 0:
            planner.check()

    def _end(self, asked: Asked, word: str) -> None:
        self.device.planner.cancel(asked.name)
        del self.live[asked.name]
        self.endings[word] += 1


def weights(seed: int, num_steps: int = 4000) -> float:
    """Tokens of a share of weight 3 over those of one of weight 1, while both always ask for more than there is."""
    chance = random.Random(seed)
    ended: list[str] = ["one", "three"] * 50
    device = Device(chance, lambda progress: ended.extend([progress.sequence.share] * bool(progress.finish_reason)))
    number = 0
    for step in range(num_steps):
        while ended:
            share = ended.pop()
            number += 1
            sequence = device.sequence(f"r{number}", chance.choice((20, 60, 200)), 30, share, WEIGHTS[share])
            device.planner.add(sequence)
        device.step()
        if step == num_steps // 4:
            device.drawn.clear()
    return device.drawn["three"] / device.drawn["one"]


def beside_a_hundred(seed: int) -> tuple[float, float, float]:
    """Seconds to the first token of one request beside another share's hundred, and alone; and the longest step."""
    first: dict[str, float] = {}
    taken = []
    longest = 0.0
    for crowd in (100, 0):
        device = Device(random.Random(seed), lambda progress: first.setdefault(progress.sequence.request_id, 0.0))
        for number in range(crowd):
            device.planner.add(device.sequence(f"crowd{number}", 200, 300, "crowd", 1.0))
        for _ in range(60):
            device.step()
        first.pop("single", None)
        began = device.now
        device.planner.add(device.sequence("single", 100, 10, "single", 1.0))
        while "single" not in first:
            device.step()
        taken.append(device.now - began)
        longest = max(longest, device.longest_step)
    return taken[0], taken[1], longest


def simulate(num_requests: int, seed: int) -> dict[str, Any]:
    """All of it; raises AssertionError where a bound is exceeded or something is left."""
    began = time.perf_counter()
    town = Town(num_requests, seed)
    town.run()
    singles = [beside_a_hundred(seed + number) for number in range(20)]
    return {
        "requests": num_requests,
        "steps": town.device.num_steps,
        "virtual_seconds": town.device.now,
        "endings": dict(town.endings.most_common()),
        "most": dict(town.most),
        "preemptions": town.device.planner.num_preemptions,
        "first_tokens_in_time": town.in_time / (town.in_time + town.late),
        "median_forecast_error": median(town.errors),
        "weights_3_to_1": [round(weights(seed + number), 3) for number in range(3)],
        "beside_a_hundred_steps_later": max((beside - alone) / longest for beside, alone, longest in singles),
        "seconds": time.perf_counter() - began,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args(arguments)
    figures = simulate(options.requests, options.seed)
    for name, value in figures.items():
        print(f"{name:<30} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
