"""Builds wheels of the package, with one small C file in the place of the kernels so that it takes no time."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from limelight.kernels.cpu import build

ROOT = Path(__file__).resolve().parents[3]
ANSWER = '__attribute__((visibility("default"))) int limelight_answer(void) { return 42; }'
LOAD = """
from limelight.kernels.cpu import loading
from limelight.kernels.cpu.library import Function
print(loading.__file__)
print(loading.load_library().call(Function("answer", "")))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a wheel is made of."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree)
    leave = shutil.ignore_patterns("__pycache__", "csrc")
    shutil.copytree(ROOT / "limelight", tree / "limelight", ignore=leave)
    sources = tree / "limelight" / "kernels" / "cpu" / "csrc"
    sources.mkdir()
    (sources / "answer.c").write_text(ANSWER)
    return tree


def wheel_of(tree: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", "made"]
    subprocess.run(command, cwd=tree, env={**os.environ, **environment}, capture_output=True, timeout=100, check=True)
    [wheel] = (tree / "made").iterdir()
    return wheel


@pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="the kernels run on Linux alone")
def test_a_wheel_has_every_variant_and_needs_no_compiler(tree: Path, tmp_path: Path) -> None:
    wheel = wheel_of(tree)
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    compiled = [name for name in names if name.startswith("limelight/kernels/cpu/compiled/")]
    assert sorted(Path(name).name.split("-")[1] for name in compiled) == sorted(build.VARIANT_FLAGS)
    assert "limelight/kernels/cpu/csrc/answer.c" in names

    environment = {**os.environ, "PATH": "/nowhere", "PYTHONPATH": str(tmp_path / "installed"), "CC": ""}
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    file, answer = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path / "installed")
    assert answer == "42"


def test_without_a_compiler_the_wheel_is_one_for_any_platform(tree: Path) -> None:
    wheel = wheel_of(tree, CC="/bin/false")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "limelight/kernels/cpu/csrc/answer.c" in names
    assert not [name for name in names if name.endswith(".so")]
