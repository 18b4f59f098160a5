"""The loop's lateness, and the samples of the last minutes."""

import time

import anyio
import pytest

from limelight.engine import EngineState
from limelight.generation import SamplingParams
from limelight.telemetry.heartbeat import NUM_SAMPLES
from limelight.testing import scripted_engine

pytestmark = pytest.mark.anyio


async def test_samples_tell_of_the_steps_of_their_second_and_sum_to_the_totals() -> None:
    async with scripted_engine() as engine:
        heartbeat = engine.telemetry.heartbeat
        await engine.generate("hello", SamplingParams(max_tokens=20))
        with anyio.fail_after(60):
            while heartbeat.num_samples < 2:
                await anyio.sleep(0.05)
        statistics, samples = engine.statistics(), list(heartbeat.samples)
    assert sum(sample.num_steps for sample in samples) == statistics.num_steps > 0
    assert sum(sample.step_seconds for sample in samples) == pytest.approx(statistics.step_seconds)
    assert sum(sample.num_tokens for sample in samples) >= 20
    assert all(0 <= sample.longest_step_seconds <= sample.step_seconds for sample in samples)
    assert samples[-1].num_running == samples[-1].num_waiting == 0
    assert samples[-1].num_free_pages == statistics.num_free_pages
    assert samples[0].at < samples[1].at <= time.time()


async def test_a_blocked_loop_is_seen() -> None:
    async with scripted_engine() as engine:
        heartbeat = engine.telemetry.heartbeat
        await anyio.sleep(0.01)
        time.sleep(0.4)  # noqa: ASYNC251 - the fault that is to be seen
        with anyio.fail_after(60):
            while not heartbeat.samples:
                await anyio.sleep(0.05)
        assert heartbeat.samples[0].lag_seconds >= 0.25
        assert heartbeat.lag_seconds.total >= 0.25
        assert sum(heartbeat.lag_seconds.counts[-4:]) >= 1


async def test_it_ends_with_the_engine_and_forgets_what_is_older_than_ten_minutes() -> None:
    engine = scripted_engine()
    async with engine:
        heartbeat = engine.telemetry.heartbeat
        for _ in range(NUM_SAMPLES + 5):
            heartbeat._take(engine.statistics(), 0.0)
        assert len(heartbeat.samples) == NUM_SAMPLES
    num_beats = sum(heartbeat.lag_seconds.counts)
    await anyio.sleep(0.3)
    assert engine.state is EngineState.STOPPED
    assert sum(heartbeat.lag_seconds.counts) == num_beats
