"""The benchmark script: its arithmetic on known figures, and a run against a real socket over a scripted model."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.serve import Result, Target, figures, main, parse, prompts, request_body, table

NAMES_OF_VLLM = {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens"}
NAMES_OF_VLLM |= {"request_throughput", "output_throughput", "total_token_throughput"}
NAMES_OF_VLLM |= {
    f"{statistic}_{name}_ms"
    for statistic in ("mean", "median", "std", "p99")
    for name in ("ttft", "tpot", "itl", "e2el")
}


def test_figures_follow_their_definitions() -> None:
    results = [
        Result(ttft=0.1, latency=0.5, gaps=[0.1, 0.3], num_input_tokens=10, num_output_tokens=5),
        Result(ttft=0.3, latency=0.3, gaps=[], num_input_tokens=20, num_output_tokens=1),
        Result(error="refused"),
    ]
    got = figures(results, duration=2.0)
    assert set(got) >= NAMES_OF_VLLM
    assert (got["completed"], got["failed"], got["errors"]) == (2, 1, ["refused"])
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (30, 6)
    assert (got["request_throughput"], got["output_throughput"], got["total_token_throughput"]) == (1.0, 3.0, 18.0)
    assert got["mean_ttft_ms"] == pytest.approx(200)
    assert got["mean_tpot_ms"] == pytest.approx(100), "0.4 s for the 4 tokens after the first; one token has none"
    assert got["median_itl_ms"] == pytest.approx(200)
    assert got["std_itl_ms"] == pytest.approx(100)
    assert got["mean_e2el_ms"] == pytest.approx(400)


def test_without_a_success_there_are_figures_all_the_same() -> None:
    got = figures([Result(error="x")], duration=1.0) | {"max_concurrency": 1}
    assert got["completed"] == 0
    assert "Failed requests:                         1" in table(got)


def test_prompts_have_the_length_asked_for_and_depend_on_the_seed() -> None:
    options = parse(["--num-prompts", "3", "--input-len", "50"])
    drawn = prompts(options)
    assert [len(prompt) for prompt in drawn] == [50, 50, 50]
    assert drawn == prompts(options)
    assert drawn != prompts(parse(["--num-prompts", "3", "--input-len", "50", "--seed", "1"]))
    words = prompts(parse(["--prompt-kind", "words", "--input-len", "7", "--num-prompts", "1"]))
    assert len(words[0].split()) == 7


def test_a_request_asks_for_a_stream_of_exactly_so_many_tokens() -> None:
    path, body = request_body(parse(["--output-len", "9"]), "m", [1, 2])
    assert (path, body["prompt"], body["max_tokens"]) == ("/v1/completions", [1, 2], 9)
    assert body["stream"]
    assert body["ignore_eos"]
    path, body = request_body(parse(["--endpoint", "chat", "--output-len", "9"]), "m", "hi")
    assert (path, body["messages"][0]["content"], body["max_completion_tokens"]) == ("/v1/chat/completions", "hi", 9)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000, "", False, None)),
        ("http://h:1/v1", Target("h", 1, "", False, None)),
        ("https://h/llm/v1/", Target("h", 443, "/llm", True, None)),
    ],
)
def test_a_base_url_is_read_with_or_without_v1(url: str, target: Target) -> None:
    assert Target.parse(url, None) == target


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--endpoint", "chat", "--prompt-kind", "tokens"])
    assert "words" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="http://"):
        Target.parse("nonsense", None)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_run_counts_every_token_of_every_stream(
    endpoint: str, scripted_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "result.json"
    arguments = ["--base-url", scripted_server, "--endpoint", endpoint, "--prompt-kind", "words"]
    arguments += ["--num-prompts", "12", "--concurrency", "4", "--input-len", "5", "--output-len", "20", "--quiet"]
    assert main([*arguments, "--save-result", str(saved)]) == 0
    result = json.loads(saved.read_text())
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (12, 0, 240)
    assert result["total_input_tokens"] > 12 * 5
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert result["mean_itl_ms"] > 0
    assert "Output token throughput (tok/s):" in capsys.readouterr().out


def test_refused_requests_are_counted_and_named(scripted_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--base-url", scripted_server, "--num-prompts", "2", "--num-warmups", "0", "--quiet"]
    assert main([*arguments, "--model", "no-such-model"]) == 1
    shown = capsys.readouterr()
    assert "Failed requests:                         2" in shown.out
    assert "404" in shown.err


def test_a_server_that_is_not_there_is_a_failed_request() -> None:
    options = argparse.Namespace(**vars(parse(["--num-prompts", "1", "--num-warmups", "0", "--quiet", "--model", "m"])))
    from benchmarks.serve import measure

    assert measure(options, "http://127.0.0.1:9")["failed"] == 1
