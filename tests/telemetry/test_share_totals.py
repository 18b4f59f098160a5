"""Shares in metrics, spans and the live view: what they used, how long they gave way, what they were refused."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from limelight.errors import ShareExceeded
from limelight.generation import GenerationRequest, SamplingParams, Share, TextPrompt
from limelight.telemetry import conventions as names
from limelight.telemetry.instruments import MAX_SERIES, OTHER
from limelight.telemetry.request_attributes import request_attributes
from limelight.telemetry.share_totals import ShareTotals
from limelight.telemetry.timeline import RequestTimeline
from limelight.testing import Answers, Hang, scripted_engine
from tests.http.test_disconnect import until

pytestmark = pytest.mark.anyio


def asked(name, share, max_tokens=5, prompt="some prompt", **fields):
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    share = Share(name=share) if isinstance(share, str) else share
    return GenerationRequest(request_id=name, prompt=TextPrompt(prompt), sampling=sampling, share=share, **fields)


async def run(engine, request):
    async with engine.open(request) as stream:
        return (await stream.result()).usage


def value(engine, name, **labels):
    return engine.metrics_registry.get_sample_value(name, labels)


async def test_tokens_and_live_requests_are_counted_by_share():
    hang = Hang()
    async with scripted_engine(Answers({"hold": ["ab", hang, "c"]}, otherwise="fine" * 9)) as engine:
        used = 0
        for number in range(2):
            usage = await run(engine, asked(f"r{number}", "a", prompt="x" * 40))
            used += usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
        await until(lambda: engine.statistics().num_requests == 0)
        assert usage.cached_tokens
        async with engine.open(asked("r2", "b", prompt="hold")) as stream:
            await anext(stream)
            assert value(engine, "limelight_share_live_requests", share="a") == 0
            assert value(engine, "limelight_share_live_requests", share="b") == 1
            assert value(engine, "limelight_share_tokens_total", share="b") >= 5
            (standing,) = engine.statistics().shares
            assert (standing.name, standing.num_live, standing.num_running, standing.lag_tokens) == ("b", 1, 1, 0.0)
            hang.release()
        assert value(engine, "limelight_share_tokens_total", share="a") == used


async def test_refusals_are_counted_by_what_refused_them():
    hang = Hang()
    async with scripted_engine(Answers({"hold": ["ab", hang, "c"]}, otherwise="fine")) as engine:
        async with engine.open(asked("r0", "a", prompt="hold", owner="a", max_owner_requests=1)) as stream:
            await anext(stream)
            with pytest.raises(ShareExceeded):
                await run(engine, asked("r1", "a", owner="a", max_owner_requests=1))
            hang.release()
        quota = Share(name="q", tokens_per_minute=1, burst_tokens=20)
        await run(engine, asked("r2", quota, prompt="x" * 15, max_tokens=1))
        for number in range(2):
            with pytest.raises(ShareExceeded):
                await run(engine, asked(f"s{number}", quota, prompt="y" * 15))
        await until(lambda: engine.statistics().num_requests == 0)
        assert value(engine, "limelight_share_refusals_total", share="a", limit="requests") == 1
        assert value(engine, "limelight_share_refusals_total", share="q", limit="tokens") == 2


@asynccontextmanager
async def contested(num_seats, *requests):
    """The views of `requests`, by id, after they came in this order, the later ones while the first's step hung."""
    hang = Hang()
    answers = Answers({"hold": ["ab", hang, "c" * 50]}, otherwise="d" * 1000)
    async with scripted_engine(answers, max_num_seqs=num_seats, num_pages=256) as engine:
        tasks = []
        for number, request in enumerate(requests, start=1):
            tasks.append(asyncio.create_task(run(engine, request)))
            if "hold" in request.prompt.text:
                await until(hang.reached.is_set)
            await until(lambda number=number: len(engine.telemetry.live) == number)
            await until(lambda: all(each.choices for each in engine.telemetry.live.values()))
        hang.release()
        await asyncio.gather(*tasks)
        await until(lambda: engine.statistics().num_requests == 0)
        yield engine, {view.request_id: view for view in engine.requests(recent=100)}


async def test_who_is_passed_over_waits_for_others_and_its_span_says_so():
    requests = (asked("first", "crowd", 50, "hold"), asked("second", "crowd", 20), asked("single", "single", 20))
    async with contested(1, *requests) as (engine, views):
        assert views["first"].share_wait_seconds == views["single"].share_wait_seconds == 0
        wait = views["second"].share_wait_seconds
        assert 0 < wait < views["second"].timings.queue
        assert wait >= views["single"].timings.decode
        assert [views[name].share for name in ("second", "single")] == ["crowd", "single"]
        (timeline,) = [each for each in engine.telemetry.recent if each.request_id == "second"]
        attributes = request_attributes(timeline)
        assert attributes[names.SHARE] == "crowd"
        assert attributes[names.SHARE_WAIT_SECONDS] == wait
        assert value(engine, "limelight_share_wait_seconds_total", share="crowd") == pytest.approx(wait)
        assert value(engine, "limelight_share_wait_seconds_total", share="single") == 0


async def test_who_gives_its_seat_back_waits_for_others():
    requests = (asked("first", "crowd", 1000), asked("second", "crowd", 50, "hold"), asked("single", "single", 20))
    async with contested(2, *requests) as (_, views):
        assert views["second"].num_preemptions == 1
        assert views["second"].share_wait_seconds > 0
        assert views["first"].share_wait_seconds == views["single"].share_wait_seconds == 0


async def test_a_share_that_has_been_served_less_lags_behind():
    async with (
        scripted_engine("x" * 1000, step_seconds=0.001) as engine,
        engine.open(asked("r0", "light", 1000)) as light,
        engine.open(asked("r1", "heavy", 1000, prompt="y" * 200)) as heavy,
    ):
        await anext(light)
        await anext(heavy)
        assert value(engine, "limelight_share_virtual_lag_tokens", share="light") > 100
        assert value(engine, "limelight_share_virtual_lag_tokens", share="heavy") == 0


def test_shares_beyond_the_bound_are_counted_together():
    totals = ShareTotals()
    for number in range(MAX_SERIES + 50):
        timeline = RequestTimeline(asked(str(number), f"share{number}"), "m", 0.0)
        timeline.admitted_at, timeline.ended_at, timeline.output_tokens = 1.0, 2.0, 3
        totals.admitted(timeline)
        totals.ended(timeline)
    now = totals.now((), 2.0)
    assert len(now) == MAX_SERIES + 1
    assert now[OTHER].tokens == 150
    assert now["share0"].tokens == 3
