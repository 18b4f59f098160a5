"""`limelight bench` over a scripted model: result names, JSON, pictures, errors, exit codes, silence."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from limelight.cli import main
from limelight.cli.options import build_parser
from limelight.testing import babble, scripted_model
from tests.bench.test_figures import NAMES_OF_VLLM

FEW = ["--num-prompts", "6", "--input-len", "5", "--output-len", "20"]
WORDS = [*FEW, "--prompt-kind", "words"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    code = main(["bench", *arguments], loader=scripted_model(babble))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:  # the parser ends the program itself
        raise SystemExit(main(["bench", *arguments]))
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_serve_counts_every_token_of_every_stream(
    endpoint: str, scripted_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, plot = tmp_path / "result.json", tmp_path / "run.svg"
    arguments = ["--base-url", scripted_server, "--endpoint", endpoint, *WORDS, "--concurrency", "4"]
    arguments += ["--json", str(saved), "--plot", str(plot), "--goodput", "ttft:60000", "tpot:60000"]
    code, shown, errors = run(capsys, "serve", *arguments)
    assert (code, errors) == (0, ""), "no bar away from a terminal"
    result = json.loads(saved.read_text())
    assert set(result) >= NAMES_OF_VLLM | {"request_goodput", "model_id", "date"}
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 120)
    assert result["total_input_tokens"] > 6 * 5
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert "Output token throughput (tok/s):" in shown
    assert "limelight bench serve: scripted" in plot.read_text()
    ET.parse(plot)


def test_json_may_take_the_place_of_the_table(scripted_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--base-url", scripted_server, *WORDS, "--request-rate", "500", "--percentiles", "50,90"]
    code, shown, _ = run(capsys, "serve", *arguments, "--json", "-")
    result = json.loads(shown)
    assert code == 0
    assert (result["request_rate"], result["max_concurrency"]) == (500.0, None)
    assert {"p50_itl_ms", "p90_itl_ms"} <= set(result)


def test_refused_requests_are_counted_named_and_end_with_1(
    scripted_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, errors = run(capsys, "serve", "--base-url", scripted_server, *FEW)  # ids that no byte has
    assert code == 1
    assert "Failed requests:" in shown
    assert "failed: 400 Bad Request" in errors
    assert len(errors.splitlines()) <= 4


def test_a_model_that_is_not_served_is_told(scripted_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "serve", "--base-url", scripted_server, "--model", "no-such-model")
    assert (code, errors.count("\n")) == (1, 1)
    assert "has no model 'no-such-model'; it has scripted" in errors


def test_an_address_where_nothing_answers_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "serve", "--base-url", "http://127.0.0.1:9")
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith("limelight: nothing answers at http://127.0.0.1:9")


def result_of(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_throughput_has_the_names_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, plot = tmp_path / "result.json", tmp_path / "run.svg"
    code, shown, errors = run(
        capsys, "throughput", *FEW, "--json", str(saved), "--plot", str(plot), "--prefix-len", "3"
    )
    assert code == 0
    assert errors.splitlines() == ["script"], "the loading of the model, and no bar"
    result = result_of(saved)
    assert {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"} <= set(
        result
    )
    assert (result["num_requests"], result["total_num_tokens"]) == (6, 6 * (3 + 5 + 20))
    assert result["tokens_per_second"] == pytest.approx(result["total_num_tokens"] / result["elapsed_time"])
    assert "Total token throughput (tok/s):" in shown
    ET.parse(plot)


def test_latency_times_batches_and_leaves_out_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, plot = tmp_path / "result.json", tmp_path / "run.svg"
    arguments = ["--batch-size", "3", "--iterations", "4", "--warmup", "2", "--input-len", "5", "--output-len", "6"]
    code, shown, _ = run(capsys, "latency", *arguments, "--json", str(saved), "--plot", str(plot))
    assert code == 0
    result = result_of(saved)
    assert len(result["latencies"]) == 4
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 4)
    assert result["percentiles"].keys() == {"10", "25", "50", "75", "90", "99"}
    assert (result["completed"], result["total_output_tokens"]) == (12, 72)
    assert "Mean latency of a batch (s):" in shown
    ET.parse(plot)


def test_prompts_that_the_model_cannot_take_end_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "throughput", *FEW, "--input-len", "5000")
    assert code == 1
    assert "failed: " in errors


def test_startup_starts_the_given_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "startup", str(tmp_path / "nothing"), "--starts", "1")
    assert code == 1
    assert "the server did not start: limelight: " in errors


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["serve", "--goodput", "itl:5"], "write ttft:MS"),
        (["serve", "--goodput", "ttft:fast"], "'fast' is no number above 0"),
        (["serve", "--percentiles", "50,200"], "write 50,90,99"),
        (["serve", "--request-rate", "0"], "is no number above 0"),
        (["serve", "--num-prompts", "0"], "is no number from 1 on"),
        (["serve", "--concurency", "4"], "did you mean --concurrency? (see limelight bench serve --help)"),
        (["serve", "--endpoint", "chat", "--prompt-kind", "tokens"], "use words"),
        (["serve", "--tokenizer", "x"], "add --prompt-kind words"),
        (["serve", "--tokenizer", "/nowhere", "--prompt-kind", "words"], "there is no file /nowhere"),
        (["serve", "--serve-args", "x"], "--start-server"),
        (["serve", "--base-url", "nonsense"], "write http://127.0.0.1:8000"),
        (["serve", "--plot", "run.pdf"], "must end in .svg or .png"),
        (["serve", "--json", "/no/such/folder/x.json"], "there is no folder /no/such/folder"),
        (["throughput", "--max-num-seq", "4"], "did you mean --max-num-seqs?"),
        (["latency", "one", "--model", "two"], "there are two models"),
        (["startup", "--starts", "none"], "is no number from 1 on"),
        ([], "BENCHMARK"),
    ],
)
def test_wrong_options_are_told_with_the_fix(typed: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(capsys, *typed)


def test_the_key_comes_from_the_environment_and_is_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser({"LIMELIGHT_API_KEY": "secret"})
    assert parser.parse_args(["bench", "serve"]).api_key == "secret"
    assert parser.parse_args(["bench", "startup"]).api_key == "secret"
    with pytest.raises(SystemExit):
        parser.parse_args(["bench", "serve", "--help"])
    assert "secret" not in capsys.readouterr().out


def test_names_of_vllm_are_understood() -> None:
    typed = ["--max-concurrency", "3", "--random-input-len", "4", "--random-output-len", "5", "--num-warmups", "0"]
    options = build_parser({}).parse_args(["bench", "serve", *typed, "--random-prefix-len", "6"])
    assert (options.concurrency, options.input_len, options.output_len) == (3, 4, 5)
    assert (options.warmup, options.prefix_len) == (0, 6)
