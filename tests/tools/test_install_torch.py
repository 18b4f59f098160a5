"""Which command installs torch, for every pair of what is wanted and what plain pip would take."""

import sys

import pytest

from tools.install_torch import CONSTRAINTS, build_of, install_command, main, pinned

PIN = "torch==9.9.9"


def test_the_pin_is_read_from_the_constraints() -> None:
    lines = ["# torch==0.0.0 in a comment", "torchvision==1.0", "Torch==9.9.9", "uv==1"]
    assert pinned("torch", lines) == "Torch==9.9.9"
    assert pinned("torch", CONSTRAINTS.read_text().splitlines()).startswith("torch==")
    with pytest.raises(SystemExit, match="does not pin torch"):
        pinned("torch", ["torchvision==1.0"])


@pytest.mark.parametrize(
    ("packages", "build"),
    [
        (["torch", "sympy", "setuptools"], "cpu"),
        (["torch", "nvidia-cublas", "triton"], "cuda"),
        (["torch", "cuda-toolkit"], "cuda"),
        (["torch", "NVIDIA-cudnn-cu13"], "cuda"),
        ([], "cpu"),
    ],
)
def test_nvidias_libraries_tell_the_cuda_build(packages: list[str], build: str) -> None:
    assert build_of(packages) == build


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_pip_installs_what_it_would_take_anyway(build: str) -> None:
    command = install_command(build, build, PIN, "linux")
    assert command[:4] == ["pip", "install", "--constraint", str(CONSTRAINTS)]
    assert command[-1] == PIN
    assert ("--no-deps" in command) == (build == "cpu")  # NVIDIA's libraries are dependencies


@pytest.mark.parametrize(("wanted", "offered", "backend"), [("cpu", "cuda", "cpu"), ("cuda", "cpu", "auto")])
def test_uv_installs_the_other_build(wanted: str, offered: str, backend: str) -> None:
    command = install_command(wanted, offered, PIN, "linux")
    assert command[:3] == ["uv", "pip", "install"]
    assert command[command.index("--torch-backend") + 1] == backend
    assert command[command.index("--python") + 1] == sys.executable
    assert command[-1] == PIN


def test_there_is_no_cuda_on_a_mac() -> None:
    assert install_command("cpu", "cpu", PIN, "darwin")[0] == "pip"
    with pytest.raises(SystemExit, match="TORCH=cpu"):
        install_command("cuda", "cpu", PIN, "darwin")


def test_another_build_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["abacus"])
    assert "abacus" in capsys.readouterr().err
