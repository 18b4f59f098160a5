"""The measurement of the event loop, short: every figure is there and can be."""

import json
from pathlib import Path

import pytest

from benchmarks.loop import TimedExecutor, main
from limelight.step import Chunk, Step, StepResult


def test_every_figure_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "loop.json"
    main(["--streams", "4", "--output-len", "10", "--rounds", "1", "--step-ms", "1", "--json", str(saved)])
    result = json.loads(saved.read_text())
    assert (result["streams"], result["total_output_tokens"]) == (4, 40)
    assert result["loop_us_per_token"] > 0
    assert 0 <= result["median_lag_ms"] <= result["p99_lag_ms"] <= result["max_lag_ms"]
    assert 0 < result["median_turnaround_ms"] <= result["p99_turnaround_ms"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(result)


class Instant:
    def submit(self, step: Step) -> "object":
        return lambda: (None,) * len(step.chunks)

    def close(self) -> None:
        pass


def test_only_steps_of_all_sequences_count() -> None:
    executor = TimedExecutor(Instant())  # type: ignore[arg-type]
    results: list[StepResult] = []
    for number, chunks in enumerate((1, 2, 2, 1)):
        chunk = Chunk(seat=0, start=0, num_tokens=1, token_ids=None)
        results.append(executor.submit(Step(number=number, chunks=(chunk,) * chunks))())
    assert [len(result) for result in results] == [1, 2, 2, 1]
    assert len(executor.turnarounds(2)) == 2
    assert all(seconds >= 0 for seconds in executor.turnarounds(2))
