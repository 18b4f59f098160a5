"""The check of a GPU as a program: without a GPU, tiny and interpreted, so that it works where it first meets one."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_check, gpu_sections
from benchmarks.gpu_model import InlineDevice, Machine
from tests.models.captured.reference_step_kernels import ReferenceStepKernels


def test_sections_run_without_a_gpu_and_their_figures_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "gpu.json"
    arguments = ["--dry-run", "--only", "products", "--only", "decode-0.6b", "--json", str(written)]
    with pytest.raises(SystemExit) as ended:
        gpu_check.main(arguments)
    assert ended.value.code == 0
    found = json.loads(written.read_text())
    assert set(found) == {"products", "decode-0.6b"}
    assert found["products"]["passed"] is True
    assert found["products"]["3 rows"]["FP8 error"] > 0.01
    assert found["decode-0.6b"]["2 x 32"]["ms"] > 0
    assert "decode-0.6b   2 x 32" in capsys.readouterr().out


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("name", ["kernels", "tokens", "products", "prefill-8b", "server", "transformers"])
def test_every_other_section_gives_its_figures_on_kernels_that_are_quick_here(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(ReferenceStepKernels("cpu"), InlineDevice(), is_dry=True)
    monkeypatch.setattr(gpu_sections, "this_machine", lambda **_: machine)
    figures = gpu_sections.run_section(name, is_dry=True)
    assert figures
    assert figures.get("passed", True) is True
    assert json.loads(json.dumps(figures)) == figures


def test_a_section_that_serves_nothing_does_without_the_packages_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(ReferenceStepKernels("cpu"), InlineDevice(), is_dry=True)
    monkeypatch.setattr(gpu_sections, "this_machine", lambda **_: machine)
    monkeypatch.setitem(sys.modules, "benchmarks.gpu_server", None)
    assert gpu_sections.run_section("machine", is_dry=True)
    with pytest.raises(ImportError):
        gpu_sections.run_section("server", is_dry=True)


def test_a_section_that_fails_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_once(name: str, _limit_seconds: float, _is_dry: bool) -> dict[str, object]:
        return {"failed": "CUDA error: misaligned address"} if name == "kernels" else {"passed": True}

    monkeypatch.setattr(gpu_check, "in_process_of_its_own", fails_once)
    with pytest.raises(SystemExit) as ended:
        gpu_check.main([])
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(gpu_check.SECTIONS)
    assert "kernels       failed                     CUDA error: misaligned address" in lines


def test_no_section_is_begun_when_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "in_process_of_its_own", pytest.fail)
    with pytest.raises(SystemExit):
        gpu_check.main(["--limit-s", "5"])
    assert capsys.readouterr().out.count("no time was left for it") == len(gpu_check.SECTIONS)


def test_a_process_that_breaks_or_hangs_is_a_failure_of_its_section() -> None:
    assert "failed" in gpu_check.in_process_of_its_own("no such section", 30, is_dry=True)
    assert gpu_check.in_process_of_its_own("machine", 0.01, is_dry=True) == {"failed": "it was not done in 0 s"}
