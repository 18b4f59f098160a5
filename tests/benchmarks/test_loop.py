"""The measurement of the event loop, short: every figure is there and can be."""

import json
import time
from pathlib import Path

import pytest

from benchmarks.loop import Device, main
from limelight.step import Chunk, Step


def test_every_figure_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "loop.json"
    main(["--streams", "4", "--output-len", "10", "--rounds", "1", "--step-ms", "1", "--json", str(saved)])
    result = json.loads(saved.read_text())
    assert (result["streams"], result["total_output_tokens"]) == (4, 40)
    assert result["loop_us_per_token"] > 0
    assert 0 <= result["median_lag_ms"] <= result["p99_lag_ms"] <= result["max_lag_ms"]
    assert 0 < result["median_planning_ms"] <= result["p99_planning_ms"]
    assert result["median_planning_ms"] <= result["median_turnaround_ms"]
    assert 0 < result["median_turnaround_ms"] <= result["p99_turnaround_ms"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(result)


def test_only_steps_of_all_sequences_count() -> None:
    device = Device(step_seconds=0.001)
    for number, chunks in enumerate((1, 2, 2, 1)):
        chunk = Chunk(seat=0, start=0, num_tokens=1, token_ids=None, sample=number > 0)
        result = device.submit(Step(number=number, chunks=(chunk,) * chunks))()
        assert [sampled is not None for sampled in result] == [number > 0] * chunks
    assert len(device.turnarounds(2)) == 2
    assert all(seconds >= 0 for seconds in device.turnarounds(2))


def test_a_step_takes_its_time_after_the_one_before() -> None:
    device = Device(step_seconds=0.02)
    started = time.perf_counter()
    waits = [device.submit(Step(number=number, chunks=())) for number in range(2)]
    for wait in waits:
        wait()
    assert device.ends[0] - started >= 0.02
    assert device.ends[1] - started >= 0.04
