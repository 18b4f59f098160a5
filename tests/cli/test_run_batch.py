"""`limelight run-batch` over a scripted model: what it tells, how it ends, and how it goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from limelight.cli import main
from limelight.config import EngineConfig
from limelight.engine import ModelLoader, Report
from limelight.models.loaded_model import LoadedModel
from limelight.testing import echo, scripted_model
from tests.batch.batch_lines import read, request, written

ROOT = Path(__file__).resolve().parent.parent.parent
SLOW = """
import sys
from limelight.cli import main
from limelight.testing import babble, scripted_model

raise SystemExit(main(sys.argv[1:], loader=scripted_model(babble, step_seconds=0.005)))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "in.output.jsonl"


def unreachable(config: EngineConfig, report: Report) -> LoadedModel:
    raise AssertionError("the model is not loaded for this")


def run(*arguments: object, loader: ModelLoader | None = None) -> int:
    return main(["run-batch", *map(str, arguments)], loader=loader or scripted_model(echo))


def custom_ids(path: Path) -> list[str]:
    return sorted(line["custom_id"] for line in read(path))


def test_a_batch_is_answered_and_told_of(source: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(source, request("a"), request("b", temperature=9), "what")
    assert run(source) == 0
    lines = {line["custom_id"]: line for line in read(target)}
    assert lines["a"]["response"]["status_code"] == 200
    assert lines["a"]["response"]["body"]["choices"][0]["text"] == "hi"
    assert lines["a"]["response"]["request_id"]
    assert lines["b"]["response"]["body"]["error"]["param"] == "temperature"
    assert lines[None]["error"]["line"] == 3
    output, told = capsys.readouterr()
    assert output == ""
    assert "answering 3 lines" in told
    assert "3 answered" in told
    assert "2 of them failed" in told
    assert "tokens/s out" in told
    assert "failed: temperature is 9" in told
    assert str(target) in told


def test_the_names_of_files_may_be_given_as_elsewhere(tmp_path: Path, source: Path, target: Path) -> None:
    written(source, request("a"))
    assert run("-i", source, "-o", tmp_path / "there.jsonl") == 0
    assert run("--input-file", source, "--output-file", tmp_path / "too.jsonl") == 0
    assert custom_ids(tmp_path / "there.jsonl") == custom_ids(tmp_path / "too.jsonl") == ["a"]
    assert not target.exists()


def test_what_is_answered_is_not_asked_again(source: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(source, request("a"), request("b"))
    assert run(source) == 0
    before = target.read_bytes()
    assert run(source, loader=unreachable) == 0
    assert "all 2 lines are answered" in capsys.readouterr().err
    written(source, request("a"), request("b"), request("c"))
    assert run(source) == 0
    assert "going on: 2 of 3 lines" in capsys.readouterr().err
    assert target.read_bytes().startswith(before)
    assert custom_ids(target) == ["a", "b", "c"]


def test_failures_are_tried_again_when_that_is_asked_for(
    source: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(source, request("a"), request("b", model="soon"), request("c", stream=True))
    assert run(source) == 0
    assert run(source, loader=unreachable) == 0
    assert "2 of them have failed: --retry-failed" in capsys.readouterr().err
    assert run(source, "--retry-failed", "--served-model-name", "soon") == 0
    assert "1 of them failed" in capsys.readouterr().err
    lines = {line["custom_id"]: line for line in read(target)}
    assert len(read(target)) == 3
    assert lines["b"]["response"]["status_code"] == 200
    assert lines["c"]["error"]["param"] == "body.stream"


def test_a_batch_in_which_nothing_succeeds_is_told_by_the_exit_code(source: Path) -> None:
    assert run(written(source, request("a", model="nope"))) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "there is no input"),
        (["none.jsonl"], "does not exist"),
        (["."], "no plain file"),
        (["in.jsonl", "-i", "in.jsonl"], "two inputs"),
        (["in.jsonl", "-o", "in.jsonl"], "is the input"),
        (["in.jsonl", "-o", "linked.jsonl"], "is the input"),
        (["in.jsonl", "-o", "."], "no plain file"),
        (["in.jsonl", "-o", "none/out.jsonl"], "No such file or directory"),
        (["in.jsonl", "-o", "essay.txt"], "no answer of a batch"),
        (["in.jsonl", "--max-num-seqs", "0"], "--max-num-seqs is 0"),
        (["twins.jsonl"], "'a' in lines 1 and 3"),
        (["empty.jsonl"], "has no requests"),
        (["in.jsonl", "--lora-folder", "x"], "--lora-folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_is_one_line_before_the_model_is_loaded(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written(source, request("a"))
    written(tmp_path / "twins.jsonl", request("a"), request("b"), request("a"))
    written(tmp_path / "empty.jsonl", "")
    written(tmp_path / "essay.txt", "an essay")
    (tmp_path / "linked.jsonl").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    try:
        returned: object = run(*arguments, loader=unreachable)
    except SystemExit as end:
        returned = end.code
    errors = capsys.readouterr().err
    assert returned == 2
    assert errors.count("\n") == 1
    assert says in errors
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_help_has_examples_and_the_form_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run-batch", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for said in ("examples:", "custom_id", "--retry-failed", "--output-file", "Exit code", "--max-num-seqs"):
        assert said in text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_goes_on_where_it_stopped(number: signal.Signals, source: Path, target: Path) -> None:
    names = [f"{index}" for index in range(400)]
    written(source, *(request(name, max_tokens=10, seed=int(name)) for name in names))
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "run-batch", str(source), "--max-num-seqs", "4"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        while not target.exists() or target.read_bytes().count(b"\n") < 20:
            assert process.poll() is None
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on" in told
        assert "Traceback" not in told
    written_before = target.read_bytes()
    num_before = written_before.count(b"\n")
    assert 20 <= num_before < 400
    with target.open("ab") as file:
        file.write(b'{"id":"batch_req_0123", "custom')  # as if it had been killed in the middle of a line
    assert run(source, loader=scripted_model()) == 0
    assert target.read_bytes().startswith(written_before[: written_before.rindex(b"\n") + 1])
    assert custom_ids(target) == sorted(names)
    assert all(line["response"]["status_code"] == 200 for line in read(target))


def test_a_device_that_is_lost_ends_the_run_with_what_to_do(source: Path, target: Path) -> None:
    lost = SLOW.replace("babble, step_seconds=0.005", "babble, before_step=lost").replace(
        "raise SystemExit",
        "from limelight.errors import EngineFailed\n"
        "def lost(step):\n"
        "    if step.number > 30:\n"
        "        raise EngineFailed('the device fell off the bus')\n"
        "raise SystemExit",
    )
    written(source, *(request(f"{index}", max_tokens=10) for index in range(50)))
    done = subprocess.run(
        [sys.executable, "-c", lost, "run-batch", str(source), "--max-num-seqs", "4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert "fell off the bus" in done.stderr
    assert "the same command goes on" in done.stderr
    assert all(line["response"]["status_code"] == 200 for line in read(target))
    assert json.loads(target.read_text().splitlines()[0])["custom_id"]
