"""Arithmetic on known results: definitions of the figures, goodput, what failed."""

import pytest

from limelight.bench.figures import figures, row, table
from limelight.bench.request_result import RequestResult

NAMES_OF_VLLM = {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens"}
NAMES_OF_VLLM |= {"request_throughput", "output_throughput", "total_token_throughput"}
NAMES_OF_VLLM |= {
    f"{statistic}_{name}_ms"
    for statistic in ("mean", "median", "std", "p99")
    for name in ("ttft", "tpot", "itl", "e2el")
}


def result(ttft: float, gaps: list[float], num_output_tokens: int, num_input_tokens: int = 10) -> RequestResult:
    made = RequestResult(num_input_tokens=num_input_tokens, num_output_tokens=num_output_tokens)
    made.arrived(ttft)
    for gap in gaps:
        made.arrived(made.latency_seconds + gap)
    return made


def test_figures_follow_their_definitions() -> None:
    results = [result(0.1, [0.1, 0.3], 5), result(0.3, [], 1, num_input_tokens=20), RequestResult(error="refused")]
    got = figures(results, duration=2.0)
    assert set(got) >= NAMES_OF_VLLM
    assert (got["completed"], got["failed"], got["errors"]) == (2, 1, {"refused": 1})
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (30, 6)
    assert (got["request_throughput"], got["output_throughput"], got["total_token_throughput"]) == (1.0, 3.0, 18.0)
    assert got["mean_ttft_ms"] == pytest.approx(200)
    assert got["mean_tpot_ms"] == pytest.approx(100), "0.4 s for the 4 tokens after the first; one token has none"
    assert got["median_itl_ms"] == pytest.approx(200)
    assert got["std_itl_ms"] == pytest.approx(100)
    assert got["mean_e2el_ms"] == pytest.approx(400)


def test_percentiles_can_be_chosen() -> None:
    got = figures([result(seconds / 1000, [], 1) for seconds in range(1, 102)], 1.0, percentiles=(50, 99.9))
    assert got["p50_ttft_ms"] == got["median_ttft_ms"] == pytest.approx(51)
    assert got["p99.9_ttft_ms"] == pytest.approx(100.9)
    assert "p99_ttft_ms" not in got
    assert "P99.9 TTFT (ms):" in table(got, "Result", (50, 99.9))


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 150.0}, 1),
        ({"ttft": 300.0}, 3),
        ({"tpot": 100.0}, 2),
        ({"ttft": 150.0, "tpot": 100.0}, 1),
        ({"ttft": 300.0, "tpot": 100.0, "e2el": 450.0}, 1),
        ({"e2el": 1.0}, 0),
    ],
)
def test_a_request_is_good_that_keeps_every_limit(limits: dict[str, float], good: int) -> None:
    results = [
        result(0.125, [0.25], 5),  # TPOT 62.5 ms, latency 375 ms
        result(0.25, [0.5], 2),  # TPOT 500 ms
        result(0.25, [0.25], 6),  # TPOT 50 ms, latency 500 ms
        RequestResult(error="refused"),
    ]
    assert figures(results, 2.0, goodput=limits)["request_goodput"] == good / 2


def test_goodput_is_told_only_where_it_is_asked_for() -> None:
    assert "request_goodput" not in figures([result(0.1, [], 1)], 1.0)
    assert "Request goodput (req/s):" in table(figures([result(0.1, [], 1)], 1.0, goodput={"ttft": 1.0}), "Result")


def test_without_a_success_there_are_figures_all_the_same() -> None:
    got = figures([RequestResult(error="x"), RequestResult(error="y"), RequestResult(error="y")], duration=1.0)
    assert (got["completed"], got["failed"]) == (0, 3)
    assert list(got["errors"].items()) == [("y", 2), ("x", 1)]
    assert set(got) >= NAMES_OF_VLLM


def test_arrivals_are_counted_from_the_start_of_the_run() -> None:
    made = result(0.25, [0.5, 0.25], 3)
    made.sent_seconds = 1.0
    assert made.arrivals_seconds == [1.25, 1.75, 2.0]
    assert made.latency_seconds == 1.0


def test_lines_of_a_table_have_one_width() -> None:
    assert {len(row(label, value)) for label in ("short", "long " * 30) for value in (1, 1.5, "text")} == {58}
