"""What requests and steps leave in the counters, however they end."""

import contextlib

import anyio
import pytest

from limelight.errors import ModelNotFound, Overloaded, RequestCancelled, StepFailure
from limelight.generation import GenerationRequest, SamplingParams, TextPrompt
from limelight.telemetry.counters import STEP_PARTS
from limelight.telemetry.instruments import MAX_SERIES, OTHER
from limelight.telemetry.timeline import Ending
from limelight.telemetry.usage_totals import Usage
from limelight.testing import scripted_engine

pytestmark = pytest.mark.anyio

MODEL = "scripted"


def request(number=0, max_tokens=5, **fields):
    sampling = SamplingParams(max_tokens=max_tokens, n=fields.pop("n", 1))
    return GenerationRequest(request_id=f"r{number}", prompt=TextPrompt("some prompt"), sampling=sampling, **fields)


async def run(engine, asked):
    async with engine.open(asked) as stream:
        return await stream.result()


def num_observed(family, *labels):
    return sum(family.of(*labels).counts)


async def test_a_completed_request_is_in_every_histogram_once():
    async with scripted_engine() as engine:
        generation = await run(engine, request(n=2))
        counters = engine.telemetry.counters
    assert counters.requests.values == {(MODEL, "completed", "length"): 1}
    assert num_observed(counters.request_seconds, MODEL, "completed") == 1
    for family in (
        *(counters.first_token_seconds, counters.queue_seconds, counters.prefill_seconds, counters.decode_seconds),
        *(counters.tokenize_seconds, counters.inference_seconds, counters.token_seconds),
        *(counters.prompt_tokens, counters.cached_tokens, counters.computed_tokens, counters.output_tokens),
        *(counters.longest_output_tokens, counters.reasoning_tokens, counters.choices, counters.max_tokens),
        counters.preemptions,
    ):
        assert num_observed(family, MODEL) == 1
        assert set(family.histograms) == {(MODEL,)}
    assert counters.prompt_tokens.of(MODEL).total == generation.usage.prompt_tokens == 12
    assert counters.output_tokens.of(MODEL).total == generation.usage.completion_tokens == 10
    assert counters.longest_output_tokens.of(MODEL).total == 5
    assert counters.choices.of(MODEL).total == 2
    assert counters.max_tokens.of(MODEL).total == 5
    assert sum(counters.inter_token_seconds.counts) == 8


async def test_parts_of_a_request_sum_to_its_time():
    async with scripted_engine(step_seconds=0.005) as engine:
        for number in range(5):
            await run(engine, request(number, max_tokens=4))
        counters = engine.telemetry.counters
        whole = counters.request_seconds.of(MODEL, "completed").total
        parts = [
            family.of(MODEL).total
            for family in (
                *(counters.tokenize_seconds, counters.queue_seconds, counters.prefill_seconds),
                counters.decode_seconds,
            )
        ]
        admission = sum(t.admitted_at - t.arrived_at for t in engine.telemetry.recent)
        tail = sum(t.ended_at - t.last_token_at for t in engine.telemetry.recent)
    assert min(parts) >= 0
    assert sum(parts) + admission + tail == pytest.approx(whole)
    assert counters.first_token_seconds.of(MODEL).total == pytest.approx(admission + sum(parts[:3]))
    assert counters.inference_seconds.of(MODEL).total == pytest.approx(parts[2] + parts[3])


async def test_steps_are_in_the_histograms_with_their_parts():
    async with scripted_engine(step_seconds=0.002) as engine:
        await run(engine, request(n=3))  # 12 tokens three times, then 4 of each choice
        statistics, counters = engine.statistics(), engine.telemetry.counters
    assert sum(counters.step_seconds.counts) == statistics.num_steps > 0
    assert counters.step_seconds.total == pytest.approx(statistics.step_seconds)
    assert (counters.step_batch_size.total, counters.step_tokens.total) == (15, 48)
    for part in STEP_PARTS:
        assert num_observed(counters.step_part_seconds, part) == (0 if part == "masks" else statistics.num_steps)
        assert counters.step_part_seconds.of(part).total >= 0


async def test_steps_that_fail_are_observed_like_others():
    def fail_sometimes(step):
        if step.number % 4 == 3:
            raise RuntimeError("broken")

    async with scripted_engine(before_step=fail_sometimes, step_seconds=0.002) as engine:
        for number in range(3):
            with pytest.raises(StepFailure):
                await run(engine, request(number, max_tokens=30))
        statistics, counters, heartbeat = engine.statistics(), engine.telemetry.counters, engine.telemetry.heartbeat
        with anyio.fail_after(60):
            while not sum(sample.num_steps for sample in heartbeat.samples):
                await anyio.sleep(0.05)
        samples = tuple(heartbeat.samples)
    assert statistics.num_steps >= 12
    for histogram in (counters.step_seconds, counters.step_tokens, counters.step_batch_size):
        assert sum(histogram.counts) == statistics.num_steps
    assert counters.step_seconds.total == pytest.approx(statistics.step_seconds)
    assert num_observed(counters.step_part_seconds, "result") == statistics.num_steps
    assert sum(sample.num_steps for sample in samples) == statistics.num_steps
    assert sum(sample.step_seconds for sample in samples) == pytest.approx(statistics.step_seconds)


async def test_each_ending_is_told_apart_and_only_what_ran_is_in_the_histograms_of_tokens():
    def fail(step):
        if fails:
            raise RuntimeError("broken")

    fails = False
    async with scripted_engine(before_step=fail, max_num_requests=1) as engine:
        counters = engine.telemetry.counters
        await run(engine, request(0))
        async with engine.open(request(1, max_tokens=1000)) as stream:
            with pytest.raises(Overloaded):
                await run(engine, request(2))
            await anext(aiter(stream))
        with anyio.fail_after(60):
            while engine.telemetry.live:
                await anyio.sleep(0.01)
        fails = True
        with pytest.raises(StepFailure):
            await run(engine, request(3))
        with pytest.raises(ModelNotFound):
            await run(engine, request(4, adapter="nobody-loaded-this"))
    assert counters.requests.values == {
        (MODEL, Ending.COMPLETED, "length"): 1,
        (MODEL, Ending.ABORTED, RequestCancelled.code): 1,
        (MODEL, Ending.REJECTED, Overloaded.code): 1,
        (MODEL, Ending.FAILED, StepFailure.code): 1,
        (OTHER, Ending.INVALID, ModelNotFound.code): 1,
    }
    assert sum(num_observed(counters.request_seconds, *labels) for labels in counters.request_seconds.histograms) == 5
    assert num_observed(counters.prompt_tokens, MODEL) == 3
    assert num_observed(counters.first_token_seconds, MODEL) == 2


async def test_embeddings_have_prompts_and_no_outputs():
    async with scripted_engine() as engine:
        await engine.embed("hello")
        counters = engine.telemetry.counters
    assert [ending for _, ending, _ in counters.requests.values] == [Ending.COMPLETED]
    assert (num_observed(counters.prompt_tokens, MODEL), counters.prompt_tokens.of(MODEL).total) == (1, 6)
    assert num_observed(counters.queue_seconds, MODEL) == 1
    for family in (counters.output_tokens, counters.max_tokens, counters.first_token_seconds):
        assert num_observed(family, MODEL) == 0


async def test_late_tokens_are_counted():
    async with scripted_engine(step_seconds=0.03, stall_seconds=0.01) as engine:
        await run(engine, request(max_tokens=4))
        assert engine.telemetry.counters.num_stalls == 3


async def test_guesses_are_counted_by_how_many_were_right():
    async with scripted_engine("abcabcabcabcabcabcabc" * 3, num_speculative_tokens=4) as engine:
        await run(engine, request(max_tokens=60))
        statistics, accepted = engine.statistics(), engine.telemetry.counters.accepted_drafts
    assert statistics.num_accepted_tokens > 0
    assert sum(number * count for number, count in enumerate(accepted)) == statistics.num_accepted_tokens


async def test_usage_is_by_principal_and_grows_while_a_request_lives():
    async with scripted_engine() as engine:
        usage, live = engine.telemetry.counters.usage, engine.telemetry.live
        await run(engine, request(0, owner="ann"))
        async with engine.open(request(1, max_tokens=30, owner="ben")) as stream:
            seen = [usage.now(live.values())[(MODEL, "ben")].output_tokens async for _ in stream]
        with anyio.fail_after(60):
            while live:
                await anyio.sleep(0.01)
        now = usage.now(())
    assert seen == sorted(seen)
    assert seen[0] < 30
    assert set(now) == {(MODEL, "ann"), (MODEL, "ben")}
    assert (now[(MODEL, "ann")].prompt_tokens, now[(MODEL, "ann")].output_tokens) == (12, 5)
    assert now[(MODEL, "ben")].output_tokens == 30
    assert all(one.num_requests == 1 and one.step_seconds > 0 and one.page_seconds > 0 for one in now.values())


@pytest.mark.parametrize("fails", [False, True])
async def test_principals_share_the_time_of_all_steps_also_of_those_in_which_requests_end(fails):
    """Most requests are left in the middle of their first step."""

    def before_step(step):
        if fails and step.number % 3 == 0:
            raise RuntimeError("broken")

    async def leave(number):
        asked = request(number, max_tokens=1000, owner=f"user {number % 3}", n=1 + number % 2)
        async with engine.open(asked) as stream:
            while stream.timeline.scheduled_at is None:
                await anyio.sleep(0.001)

    async with scripted_engine(before_step=before_step, step_seconds=0.01) as engine:
        for _ in range(4):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(leave, number)
        with contextlib.suppress(StepFailure):
            await run(engine, request("last", owner="user 0"))
        usage, live = engine.telemetry.counters.usage, engine.telemetry.live
        with anyio.fail_after(60):
            while live or engine.statistics().num_running:
                await anyio.sleep(0.01)
        by_principal = sum(one.step_seconds for one in usage.now(()).values())
        by_request = sum(view.step_seconds for view in engine.requests(recent=100))
        step_seconds = engine.statistics().step_seconds
    assert engine.telemetry.counters.requests.values[(MODEL, "aborted", RequestCancelled.code)] >= 8
    assert by_request == pytest.approx(step_seconds, rel=0.01)
    assert by_principal == pytest.approx(step_seconds, rel=0.01)


async def test_principals_beyond_the_bound_are_counted_together_and_no_total_falls():
    async with scripted_engine(max_num_requests=4 * MAX_SERIES) as engine:
        usage, live = engine.telemetry.counters.usage, engine.telemetry.live
        before = Usage()
        async with anyio.create_task_group() as group:
            for number in range(MAX_SERIES + 20):
                group.start_soon(run, engine, request(number, max_tokens=2, owner=f"user {number}"))
            for _ in range(50):
                await anyio.sleep(0.002)
                other = usage.now(live.values()).get((OTHER, OTHER), Usage())
                assert other.output_tokens >= before.output_tokens
                before = other
        now = usage.now(())
        assert len(now) == MAX_SERIES + 1
        assert now[(OTHER, OTHER)].num_requests == 20
        assert sum(one.output_tokens for one in now.values()) == 2 * (MAX_SERIES + 20)
        assert now[(MODEL, "user 0")].output_tokens == 2
