"""Tests of `limelight.kernels.cpu.loading`, with libraries of one small file so that compiling takes no time."""

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from limelight.errors import ConfigError
from limelight.kernels.cpu import build, loading
from limelight.kernels.cpu.library import Function, Library, UnmadeLibrary
from limelight.kernels.cpu.loading import STAGE, expected_library, load_library

ANSWER = Function("answer", "")
needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One function instead of the kernels; the cache and the package are folders of this test."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "answer.c").write_text('__attribute__((visibility("default"))) int limelight_answer(void) { return 42; }')
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(loading, "COMPILED", tmp_path / "compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "limelight" / "kernels"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)


def load(variant: str = "portable") -> Library:
    library = load_library(variant)
    assert library is not None
    assert library.call(ANSWER) == 42
    return library


def only(cache: Path) -> Path:
    [path] = cache.iterdir()
    return path


@needs_compiler
def test_kernels_are_compiled_at_first_use_alone(cache: Path) -> None:
    stages: list[tuple[str, float | None]] = []
    assert load_library("portable", lambda stage, fraction: stages.append((stage, fraction))) is not None
    assert stages == [(STAGE, 0.0), (STAGE, 0.5), (STAGE, 1.0)]
    made = only(cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert load_library("portable", lambda stage, fraction: stages.append((stage, fraction))) is not None
    assert len(stages) == 3
    assert only(cache) == made


@needs_compiler
def test_auto_is_the_fastest_variant_that_runs() -> None:
    from limelight.kernels.cpu.features import runnable_variants

    assert load("auto").variant == runnable_variants()[0]


@needs_compiler
def test_a_change_of_the_sources_compiles_anew(cache: Path, sources: Path) -> None:
    load()
    (sources / "more.h").write_text("/* changed */")
    load()
    assert len(list(cache.iterdir())) == 2


@needs_compiler
@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None])
def test_a_damaged_library_is_made_again(cache: Path, damage: bytes | None) -> None:
    load()
    made = only(cache)
    contents = made.read_bytes()
    made.unlink()  # not written over: this process runs it
    made.write_bytes(contents[: len(contents) // 2] if damage is None else damage)
    load()
    assert only(cache).read_bytes() == contents


@needs_compiler
def test_a_library_that_does_not_load_is_made_again_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load()
    tried: list[Path] = []

    def refuse(_variant: str, path: Path) -> Library:
        tried.append(path)
        raise OSError("no such symbol")

    monkeypatch.setattr(loading, "Library", refuse)
    assert load_library("portable") is None
    assert len(tried) == 2
    assert "no such symbol" in caplog.text
    assert list(cache.iterdir()) == []


@needs_compiler
def test_two_processes_may_compile_at_once(cache: Path, tmp_path: Path, sources: Path) -> None:
    script = f"""
from pathlib import Path
from limelight.kernels.cpu import build
from limelight.kernels.cpu.library import Function
from limelight.kernels.cpu.loading import load_library
build.SOURCES = Path({str(sources)!r})
print(load_library("portable").call(Function("answer", "")))
"""
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    running = [
        subprocess.Popen([sys.executable, "-c", script], cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["42"] * 3
    only(cache)


@needs_compiler
def test_a_folder_that_others_can_write_to_is_not_used(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    load()
    assert list(cache.iterdir()) == []
    assert "others can write to it" in caplog.text


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.mkdir(parents=True, mode=0o700)
    os.chown(cache, 12345, 12345)
    load()
    assert list(cache.iterdir()) == []
    assert "belongs to another user" in caplog.text


@needs_compiler
def test_a_link_is_not_followed(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.parent.mkdir(parents=True)
    cache.symlink_to(tmp_path / "elsewhere")
    load()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@needs_compiler
def test_a_library_that_others_can_write_to_is_not_loaded(cache: Path) -> None:
    load()
    made = only(cache)
    made.chmod(0o666)
    load()
    assert only(cache).stat().st_mode & 0o777 == 0o600


@needs_compiler
def test_without_a_home_each_start_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    load()
    assert "each start compiles them" in caplog.text


def test_where_no_folder_can_be_written_to_there_are_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert load_library("portable") is None
    assert "Not a directory" in caplog.text


@needs_compiler
def test_libraries_go_when_they_have_not_been_used_for_a_month(cache: Path, sources: Path) -> None:
    load()
    old = only(cache)
    os.utime(old, (0, 0))
    load()  # a use
    (sources / "more.h").write_text("/* 1 */")
    load()
    assert old.exists()
    os.utime(old, (0, 0))
    (cache / "building-broken-off").mkdir()
    os.utime(cache / "building-broken-off", (0, 0))
    (sources / "more.h").write_text("/* 2 */")
    load()
    assert not old.exists()
    assert len(list(cache.iterdir())) == 2


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_one_warning_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert load_library() is None
    [record] = caplog.records
    assert "there is no C compiler" in record.message
    assert "slower" in record.message
    assert "apt-get install gcc" in record.message


@needs_compiler
def test_without_a_compiler_what_has_been_compiled_before_is_used(request: pytest.FixtureRequest) -> None:
    load()
    request.getfixturevalue("no_compiler")
    load()


@needs_compiler
def test_a_library_in_the_package_needs_no_compiler(
    tmp_path: Path, sources: Path, cache: Path, request: pytest.FixtureRequest
) -> None:
    command = build.compiler()
    assert command is not None
    (tmp_path / "compiled").mkdir()
    packaged = tmp_path / "compiled" / build.packaged_name("portable")
    build.compile_library(command, build.flags_of("portable"), packaged)
    request.getfixturevalue("no_compiler")
    load()
    assert not cache.exists()
    (sources / "more.h").write_text("/* newer sources than the package's library */")
    assert load_library("portable") is None


@needs_compiler
def test_what_the_compiler_does_not_accept_is_shown(sources: Path, caplog: pytest.LogCaptureFixture) -> None:
    (sources / "answer.c").write_text("int broken(void) { return nonsense; }")
    assert load_library("portable") is None
    assert "nonsense" in caplog.text
    assert "answer.c" in caplog.text


def test_cc_names_the_compiler(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CC", "/bin/false --fast")
    assert build.compiler() == ["/bin/false", "--fast"]
    assert load_library("portable") is None
    assert "/bin/false --fast --version" in caplog.text


def test_a_cc_that_is_no_command_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CC", 'gcc "-O2')
    assert load_library("portable") is None
    assert """CC is 'gcc "-O2', which is no command: No closing quotation""" in caplog.text


@needs_compiler
def test_a_compiler_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(build, "TIMEOUT_SECONDS", 0.0)
    assert load_library("portable") is None
    assert "was not done in" in caplog.text


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no kernels 'sse9'.*auto, avx512, avx2, portable"):
        load_library("sse9")


def test_a_variant_that_the_processor_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "runnable_variants", lambda: ["avx2", "portable"])
    monkeypatch.setattr(loading, "processor_flags", lambda: {"avx2", "fma", "f16c", "avx512f"})
    with pytest.raises(ConfigError, match=r"'avx512'.*lacks avx512_bf16, avx512_vnni, .*it runs avx2, portable"):
        load_library("avx512")


@needs_compiler
def test_other_words_behind_the_compiler_make_another_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setenv("CC", f"{(build.compiler() or [])[0]} -g0")
    load()
    assert len(list(cache.iterdir())) == 2


@needs_compiler
def test_a_compiler_that_does_not_work_leaves_what_another_one_made(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    monkeypatch.setenv("CC", "false")
    load()
    assert only(cache).exists()


@needs_compiler
def test_what_is_expected_is_not_compiled(cache: Path) -> None:
    unmade = expected_library("portable")
    assert isinstance(unmade, UnmadeLibrary)
    assert unmade.variant == "portable"
    assert list(cache.iterdir()) == []
    load()
    made = expected_library("portable")
    assert made is not None
    assert made.call(ANSWER) == 42


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_nothing_is_expected() -> None:
    assert expected_library("portable") is None
