"""Token buckets and what requests pay, under virtual time."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from limelight.actors.quotas import FIRST_SWEEP, Quotas
from limelight.actors.scheduling.observer import Unobserved
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.token_bucket import TokenBucket
from limelight.errors import ShareExceeded
from limelight.generation import Share
from limelight.step import Capacity, SeatSampling
from tests.actors.scheduling.test_forecast import drawn, true_seconds

CAPACITY = Capacity(
    num_pages=256, page_size=16, num_seats=4, max_num_batched_tokens=64, max_model_len=1024, vocab_size=100
)
SMALL = Capacity(num_pages=24, page_size=16, num_seats=4, max_num_batched_tokens=32, max_model_len=300, vocab_size=100)


class Payments(Unobserved):
    """Tells the meters what the ledger of an engine tells them."""

    def __init__(self, shop: "Shop") -> None:
        self.shop = shop

    def unseats(self, sequence):
        if sequence.meter is not None:
            sequence.meter.unseats(sequence)

    def ended(self, sequence):
        self.shop.cancelled_prompt_tokens[sequence.request_id] = min(
            sequence.num_computed_tokens, sequence.num_prompt_tokens
        )
        if sequence.meter is not None:
            sequence.meter.ended(sequence, self.shop.now)


class Shop:
    """A planner whose requests pay, and its clock.

    Attributes:
        used: by payer, what the `usage` of its requests says: tokens of prompts that were not cached, and drawn ones.
    """

    def __init__(self, capacity: Capacity = CAPACITY, seed: int = 0) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.quotas = Quotas(lambda: self.now)
        self.planner = Planner(capacity, prefix_caching=True, pipeline_depth=1, observer=Payments(self))
        self.drawn: dict[str, int] = {}
        self.seen: dict[str, Sequence] = {}
        self.cancelled_prompt_tokens: dict[str, int] = {}
        self.num = 0

    def ask(self, share: Share, prompt: list[int], max_tokens: int) -> str:
        """Raises ShareExceeded."""
        self.num += 1
        name = f"r{self.num}"
        sequence = Sequence(
            request_id=name,
            prompt_token_ids=tuple(prompt),
            sampling=SeatSampling(temperature=0.0),
            max_tokens=max_tokens,
            share=share.name,
        )
        own = self.planner.outlook([sequence]).num_own_tokens
        self.quotas.check(share, own)
        self.planner.add(sequence)
        self.quotas.pay(share, [sequence], own)
        self.seen[name] = sequence
        return name

    def prompt(self, length: int) -> list[int]:
        return [self.chance.randrange(100) for _ in range(length)]

    def step(self) -> bool:
        step = self.planner.plan()
        if step is None:
            return False
        num_decodes = sum(chunk.num_tokens == 1 for chunk in step.chunks)
        self.now += true_seconds(num_decodes, sum(chunk.num_tokens for chunk in step.chunks) - num_decodes)
        for progress in self.planner.complete(step.number, drawn(step)):
            sequence, num_tokens = progress.sequence, len(progress.token_ids)
            if num_tokens:
                self.drawn[sequence.request_id] = self.drawn.get(sequence.request_id, 0) + num_tokens
                sequence.meter.drew(sequence, num_tokens, self.now)
        return True

    def left(self, share: Share) -> float:
        standing = self.quotas.standing(share)
        assert standing is not None
        return standing.remaining_tokens


def share(per_minute: float = 6000, burst: float | None = 500, **fields) -> Share:
    return Share(name="a", tokens_per_minute=per_minute, burst_tokens=burst, **fields)


STILL = share(1, 10**9)
"""Fills by nothing to speak of: what is missing is what was paid."""


def test_a_prompt_pays_what_is_not_cached_and_each_drawn_token():
    shop = Shop()
    prompt = shop.prompt(96)
    shop.ask(STILL, prompt, 10)
    while shop.step():
        pass
    assert 10**9 - shop.left(STILL) == pytest.approx(106, abs=0.1)
    shop.ask(STILL, prompt, 5)
    while shop.step():
        pass
    assert 10**9 - shop.left(STILL) == pytest.approx(106 + 16 + 5, abs=0.1)  # the last page is computed again


def test_a_prompt_that_another_request_computes_meanwhile_is_given_back():
    shop = Shop()
    prompt = shop.prompt(96)
    for _ in range(2):
        shop.ask(STILL, prompt, 1)
    assert 10**9 - shop.left(STILL) == pytest.approx(192, abs=0.1)
    while shop.step():
        pass
    paid = 10**9 - shop.left(STILL)
    assert paid == pytest.approx(sum(96 - each.cached_tokens for each in shop.seen.values()) + 2, abs=0.1)


@pytest.mark.parametrize("num_steps", range(4))
def test_a_request_that_ends_before_its_first_token_pays_what_was_computed(num_steps):
    shop = Shop()
    name = shop.ask(STILL, shop.prompt(200), 5)
    for _ in range(num_steps):
        assert shop.step()
    shop.planner.cancel(name)
    assert name not in shop.drawn
    assert 10**9 - shop.left(STILL) == pytest.approx(64 * num_steps, abs=0.1)


def test_a_step_that_fails_costs_nothing():
    shop = Shop()
    shop.ask(STILL, shop.prompt(200), 5)
    shop.step()
    step = shop.planner.plan()
    for chunk in shop.planner.chunks(step.number):
        chunk.sequence.meter.lost(chunk, shop.now)
    shop.planner.fail(step.number)
    assert 10**9 - shop.left(STILL) == pytest.approx(64, abs=0.1)


def test_an_empty_bucket_refuses_and_says_exactly_when_it_will_not():
    shop = Shop()
    shop.ask(share(), shop.prompt(400), 1)
    with pytest.raises(ShareExceeded, match=r"'a' may use 6000 tokens per minute and 500 at once: 100 are left") as it:
        shop.ask(share(), shop.prompt(300), 1)
    wait = it.value.retry_after_seconds
    assert wait == pytest.approx(2.0)  # 200 tokens, 100 a second
    shop.now += wait - 0.001
    with pytest.raises(ShareExceeded):
        shop.ask(share(), shop.prompt(300), 1)
    shop.now += 0.001
    shop.ask(share(), shop.prompt(300), 1)


def test_a_prompt_larger_than_the_burst_is_let_in_by_a_full_bucket_and_paid_off():
    shop = Shop()
    shop.ask(share(), shop.prompt(900), 1)
    with pytest.raises(ShareExceeded) as it:
        shop.ask(share(), shop.prompt(900), 1)
    assert it.value.retry_after_seconds == pytest.approx(9.0)
    with pytest.raises(ShareExceeded) as it:
        shop.ask(share(), shop.prompt(1), 1)
    assert it.value.retry_after_seconds == pytest.approx(4.01)


def test_a_cached_prompt_is_let_in_where_a_new_one_of_its_length_is_not():
    shop = Shop()
    prompt = shop.prompt(400)
    shop.ask(share(), prompt, 1)
    while shop.step():
        pass
    with pytest.raises(ShareExceeded):
        shop.ask(share(), shop.prompt(400), 1)
    shop.ask(share(), prompt, 1)


def test_shares_with_one_payer_draw_on_one_quota_and_others_do_not():
    shop = Shop()
    users = [Share(name=f"gateway/{user}", tokens_per_minute=60, payer="gateway") for user in ("ada", "bob")]
    shop.ask(users[0], shop.prompt(50), 1)
    with pytest.raises(ShareExceeded, match="'gateway'"):
        shop.ask(users[1], shop.prompt(50), 1)
    shop.ask(Share(name="gateway/bob", tokens_per_minute=60), shop.prompt(50), 1)
    shop.ask(Share(name="other"), shop.prompt(500), 1)
    assert shop.quotas.standing(Share(name="other")) is None


def test_new_limits_hold_at_once():
    shop = Shop()
    shop.ask(share(), shop.prompt(400), 1)
    assert shop.left(share(burst=50)) == 50
    assert shop.left(share(burst=1000)) == 50
    shop.now += 1
    assert shop.left(share(burst=1000)) == pytest.approx(150)


def test_buckets_that_are_full_again_are_forgotten_and_those_in_use_are_not():
    shop = Shop()
    shop.ask(share(), shop.prompt(400), 1)
    used = Share(name="used", tokens_per_minute=1, burst_tokens=100)
    shop.ask(used, shop.prompt(90), 1)
    while shop.step():
        pass
    shop.now += 60
    for number in range(FIRST_SWEEP):
        shop.quotas.standing(Share(name=f"s{number}", tokens_per_minute=10))
    assert len(shop.quotas._buckets) < FIRST_SWEEP / 2
    assert shop.left(used) == pytest.approx(100 - 91 + 1, abs=0.1)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(1, 60), st.integers(0, 3)), max_size=30))
def test_whatever_happens_what_was_paid_is_what_was_computed_and_drawn(events):
    """Pages are short, so that sequences are preempted; what is computed again is not paid again."""
    shop = Shop(SMALL)
    prompts = [shop.prompt(200) for _ in range(3)]
    live: list[str] = []
    for kind, length, max_tokens, gap in events:
        if kind == 3 and live:
            shop.planner.cancel(live.pop(length % len(live)))
        else:
            live.append(shop.ask(STILL, prompts[kind % 3][:length], max_tokens))
        for _ in range(gap):
            shop.step()
    while shop.step():
        pass
    owed = 0
    for name, sequence in shop.seen.items():
        if name in shop.drawn:
            owed += sequence.num_prompt_tokens - sequence.cached_tokens + shop.drawn[name]
        elif not sequence.was_scheduled:
            assert sequence.cached_tokens == 0
        else:
            owed += max(sequence.meter._computed, 0)
    assert 10**9 - shop.left(STILL) == pytest.approx(owed, abs=1)
    assert shop.quotas._buckets["a"].num_holders == 0


@pytest.mark.parametrize("seed", range(2))
def test_over_three_minutes_a_key_gets_its_rate_and_its_burst_and_never_more(seed):
    """It asks again as soon as it is told that it may; others, without a quota, fill the machine meanwhile."""
    shop = Shop(seed=seed)
    quota = share(12_000, 2000)
    free = Share(name="free", tokens_per_minute=10**9)
    refused_until, lowest, num_refused = 0.0, 0.0, 0
    while shop.now < 180:
        if shop.planner.num_waiting < 6:
            shop.ask(free, shop.prompt(shop.chance.randrange(10, 200)), shop.chance.randrange(1, 60))
        if shop.now >= refused_until:
            try:
                shop.ask(quota, shop.prompt(shop.chance.randrange(10, 600)), shop.chance.randrange(1, 100))
            except ShareExceeded as error:
                refused_until = shop.now + error.retry_after_seconds
                num_refused += 1
        shop.step()
        lowest = min(lowest, shop.left(quota))
    used = sum(
        each.num_prompt_tokens - each.cached_tokens + shop.drawn[name]
        for name, each in shop.seen.items()
        if each.share == "a" and name in shop.drawn
    )
    assert num_refused > 30
    assert lowest > -4 * 100  # what running requests draw beyond it
    assert 0.97 * 36_000 < used < 36_000 + 2000 + 4 * 100


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(-50, 150)), max_size=40))
def test_a_bucket_is_never_above_its_size_and_waits_are_exact(uses):
    bucket, now = TokenBucket(2.0, 100.0, 0.0), 0.0
    level = 100.0
    for gap, amount in uses:
        now += gap
        level = min(100.0, level + 2.0 * gap)
        assert bucket.level(now) == pytest.approx(level, abs=1e-6)
        wait = bucket.seconds_until(60.0, now)
        assert wait == pytest.approx(max(0.0, 60.0 - level) / 2.0, abs=1e-6)
        bucket.take(amount, now)
        level = min(100.0, level - amount)
