"""Compilers and compiled kernels: there, missing, broken."""

import stat
from pathlib import Path

import pytest

from limelight.doctor.computing import find_compiler, kernels_here
from limelight.doctor.finding import State
from limelight.doctor.gpu import GpuAnswer
from limelight.kernels.cpu import build, loading
from limelight.kernels.cpu.loading import NO_COMPILER, Outlook, load_library, outlook

CPU = GpuAnswer(device="cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of kernels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "COMPILED", tmp_path / "no-wheel")
    return tmp_path / "cache" / "limelight" / "kernels"


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that CC names; it says its version and fails at everything else."""
    program = tmp_path / "fakecc"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "fakecc 1.0" && exit 0\necho "no stdlib.h" >&2\nexit 1\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(program))
    return program


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler", lambda: None)


def test_without_a_compiler_kernels_are_torchs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    assert outlook() == Outlook(None, problem=NO_COMPILER)
    kernels, (found,) = kernels_here("auto", CPU)
    assert kernels.variant is None
    assert found.state is State.NOTE
    assert "there is no C compiler" in found.text
    assert "apt-get install gcc" in (found.advice or "")
    assert find_compiler() == (None, None)


def test_a_compiler_without_headers_is_found_out(cache: Path, fake_compiler: Path) -> None:
    assert find_compiler() == ("fakecc 1.0", None)
    kernels, (found,) = kernels_here("auto", CPU)
    assert kernels.variant is None
    assert "ended with code 1" in found.text
    assert list(cache.glob("*.so")) == []


def test_kernels_that_would_be_compiled_are_not_compiled_for_the_question(cache: Path) -> None:
    found = outlook("portable")
    if found.variant is None:
        pytest.skip("there is no C compiler")
    assert found == Outlook("portable", compiled=False)
    assert list(cache.glob("*")) == []


def test_kernels_of_the_cache_are_found(cache: Path) -> None:
    if load_library("portable") is None:
        pytest.skip("there is no C compiler")
    assert outlook("portable") == Outlook("portable", compiled=True)
    kernels, (found,) = kernels_here("portable", CPU)
    assert kernels.compiled
    assert "compiled already" in found.text


def test_kernels_of_the_cache_do_without_a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if load_library("portable") is None:
        pytest.skip("there is no C compiler")
    no_compiler(monkeypatch)
    assert outlook("portable") == Outlook("portable", compiled=True)


def test_a_cache_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limelight").write_text("a file in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "COMPILED", tmp_path / "no-wheel")
    kernels, findings = kernels_here("portable", CPU)
    if kernels.variant is None:
        pytest.skip("there is no C compiler")
    assert "each start compiles them" in findings[1].text


def test_a_broken_cc_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc 'unclosed")
    title, found = find_compiler()
    assert title is None
    assert found is not None
    assert "which is no command" in found.text
