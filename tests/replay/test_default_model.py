"""Requests of the default model, recorded under load, preempted, and run again: the same to the last bit."""

import asyncio
from pathlib import Path

import pytest

from limelight.engine import Engine
from limelight.generation import SamplingParams
from limelight.models.hub import embedded_model
from tests.replay.recorded import ask, bundle_of, run_again

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]
TEXT = "Once upon a time there was a robot who lived in a big city and liked to count things. " * 2
SAMPLED = SamplingParams(max_tokens=40, temperature=1.0, top_p=0.95, frequency_penalty=0.5, ignore_eos=True, n=2)
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)


async def record(folder: Path) -> None:
    """In a pool that does not hold them all."""
    async with Engine(
        record_dir=str(folder), max_num_batched_tokens=48, max_num_seqs=6, max_model_len=128,
        kv_cache_bytes=6 * 2**20, num_threads=2, quantize="int8",
    ) as engine:  # fmt: skip
        await engine.generate(TEXT, GREEDY)
        await asyncio.gather(
            *(ask(engine, f"r{number}", f"{TEXT}{number}", (GREEDY, SAMPLED)[number % 2]) for number in range(6))
        )
        assert engine.statistics().num_preemptions > 0


async def test_what_was_recorded_under_load_is_the_same_again(tmp_path):
    if embedded_model() is None:
        pytest.skip("the package with the default model is not installed")
    await record(tmp_path)
    bundles = [bundle_of(tmp_path, f"r{number}") for number in range(6)]
    assert any(bundle.cached_tokens for bundle in bundles)
    preempted = next(bundle for bundle in bundles if any(event.kind == "unseated" for event in bundle.events))
    for bundle, with_neighbours in ((bundles[1], False), (preempted, True)):
        verdict = run_again(bundle, None, with_neighbours=with_neighbours, kv_cache_bytes=2**25)
        assert verdict.same, verdict.first_difference
        assert verdict.num_compared == verdict.num_recorded
        assert verdict.largest_logprob_change == 0.0
        assert [change.what for change in verdict.changes] == ["config kv_cache_bytes"]
    other = run_again(bundles[1], None, quantize="none", kv_cache_bytes=2**25)
    assert other.first_difference is not None or other.largest_logprob_change
    assert "config quantize" in [change.what for change in other.changes]
