"""The operations of a recorded pass: arithmetic on known figures, and a short run of the default model."""

import json
from pathlib import Path

import pytest

from limelight.bench.kernels import ModelSize, Roof, lines, pass_figures, steps
from limelight.cli import main
from limelight.config import EngineConfig
from limelight.kernels.cpu import build
from limelight.models.loaded_model import LoadedModel
from limelight.progress import Report
from limelight.step import Capacity
from limelight.testing import scripted_model

ROOF = Roof(bandwidth=1e9, product_rate=1e12)
SIZE = ModelSize(weights_bytes=10**7, kv_bytes_per_token=1000, num_weights=10**9, num_head_weights=10**8)


def test_few_rows_are_bound_by_memory_and_many_by_the_product() -> None:
    assert ROOF.least_seconds(SIZE, 1, 1, 0) == pytest.approx({"linear": 0.01})
    assert ROOF.least_seconds(SIZE, 100, 1, 2000) == pytest.approx({"linear": 0.2002, "attend": 0.002})


def test_operations_are_summed_by_kind() -> None:
    operations = [("linear", 0.002), ("attend", 0.001), ("linear", 0.004), ("embed", 0.001)]
    got = pass_figures("decode, 1 row", 1, operations, {"linear": 0.003, "attend": 0.0005})
    assert got["ms"] == pytest.approx(8)
    assert got["least_ms"] == pytest.approx(3.5)
    assert got["roofline_share"] == pytest.approx(3.5 / 8)
    assert next(iter(got["kinds"])) == "linear"
    assert got["kinds"]["linear"] == pytest.approx(
        {"ms": 6.0, "num_operations": 2, "share": 0.75, "roofline_share": 0.5}
    )
    assert "roofline_share" not in got["kinds"]["embed"]


def test_steps_fit_what_the_model_can_hold() -> None:
    capacity = Capacity(
        num_pages=20, page_size=16, num_seats=8, max_num_batched_tokens=64, max_model_len=200, vocab_size=100
    )
    made = steps(capacity, 20)
    names = ["decode, 1 row", "decode, 8 rows", "prefill, 128 tokens"]
    assert [name for name, *_ in made] == names, "no prefill of 512 in a context of 200"
    for _, before, run, kv_tokens in made:
        assert all(sum(chunk.num_tokens for chunk in one.chunks) <= 64 for one in [*before, *run])
        if kv_tokens:
            [step] = run
            pages = [page for one in before for chunk in one.chunks for page in chunk.new_pages]
            assert len(pages) == len(set(pages)) == 2 * len(step.chunks)
            assert kv_tokens == 21 * len(step.chunks)
    chunks = [chunk for step in made[-1][2] for chunk in step.chunks]
    assert [(chunk.start, chunk.num_tokens, chunk.sample) for chunk in chunks] == [(0, 64, False), (64, 64, True)]


@pytest.mark.model
@pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")
def test_the_default_model_is_taken_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, plot = tmp_path / "result.json", tmp_path / "passes.svg"
    few = ["--max-num-batched-tokens", "128", "--max-num-seqs", "8", "--max-model-len", "600"]
    few += ["--context", "16", "--repeats", "1"]
    assert main(["bench", "kernels", *few, "--json", str(saved), "--plot", str(plot)]) == 0
    result = json.loads(saved.read_text())
    names = ["decode, 1 row", "decode, 8 rows", "prefill, 128 tokens", "prefill, 512 tokens"]
    assert [one["name"] for one in result["passes"]] == names
    for one in result["passes"]:
        assert one["ms"] == pytest.approx(sum(entry["ms"] for entry in one["kinds"].values()))
        assert {"linear", "attend", "embed"} <= set(one["kinds"])
        assert 0 < one["roofline_share"] < 3
    assert result["memory_gb_per_second"] > 0
    assert bool(result["switch_overs"]) == (result["variant"] != "portable")
    assert "\n".join(lines(result)) in capsys.readouterr().out
    assert "decode, 8 rows" in plot.read_text()


def test_no_model_is_loaded_where_none_would_run_on_the_kernels_in_c(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(_config: EngineConfig, _report: Report) -> LoadedModel:
        raise AssertionError("a model is loaded")

    assert main(["bench", "kernels", "--cpu-kernels", "reference"], loader=load) == 1
    assert "does not run on the kernels in C" in capsys.readouterr().err


def test_a_model_without_a_recorded_pass_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels"], loader=scripted_model()) == 1
    assert "does not run on the kernels in C" in capsys.readouterr().err
