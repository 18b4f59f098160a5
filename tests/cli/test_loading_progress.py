"""How loading shows on standard error."""

import io
import re
import sys

import pytest

from limelight.cli.loading_progress import LoadingProgress
from limelight.progress import BytesDone, Note

MIB = 2**20
GIB = 2**30


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_download_says_its_size_and_then_little(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = LoadingProgress(clock)
    for megabytes in range(1025):
        progress("downloading maker/model", BytesDone(megabytes * MIB, GIB))
        clock.now += 0.1
    progress("loading weights", 0.5)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "downloading maker/model: 1.00GB"
    assert lines[1] == "downloading maker/model: 10% of 1.00GB, 10.0MB/s, 01:32 left"
    assert len(lines) == 11
    assert lines[-1] == "loading weights"


def test_a_quick_download_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LoadingProgress(Clock())
    for part in range(11):
        progress("downloading maker/model", BytesDone(part, 10))
    assert capsys.readouterr().err == "downloading maker/model: 10.0B\n"


def test_a_slow_download_is_not_silent_for_long_and_never_chatty(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = LoadingProgress(clock)
    for share in range(101):
        progress("downloading", BytesDone(share * GIB, 100 * GIB))
        clock.now += 3600
    assert len(capsys.readouterr().err.splitlines()) == 10


def test_what_was_there_before_is_said_and_not_counted_as_speed(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = LoadingProgress(clock)
    progress("downloading", BytesDone(512 * MIB, GIB, 512 * MIB))
    clock.now += 10
    progress("downloading", BytesDone(712 * MIB, GIB, 512 * MIB))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "downloading: 1.00GB, 512MB of them here already"
    assert second == "downloading: 70% of 1.00GB, 20.0MB/s, 00:15 left"


def test_on_a_terminal_a_download_is_a_bar_with_bytes_speed_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = LoadingProgress()
    progress("downloading maker/model", BytesDone(512 * MIB, GIB, 512 * MIB))
    progress("downloading maker/model", BytesDone(GIB, GIB, 512 * MIB))
    progress.close()
    last = terminal.getvalue().rstrip("\n").split("\r")[-1]
    assert re.match(r"downloading maker/model: 100%\|.*\| 1\.00G/1\.00G .*B/s, 00:00 left", last)


def test_a_fraction_of_bytes_is_a_number_for_who_wants_no_more() -> None:
    assert BytesDone(1, 4) == 0.25
    assert BytesDone(5, 4) == 1.0
    assert BytesDone(0, 0) == 1.0


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_note_is_a_line_and_no_bar(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    progress = LoadingProgress()
    progress(Note("computing in float32"), None)
    progress(Note("computing in float32"), None)
    progress.close()
    assert sys.stderr.getvalue() == 2 * "computing in float32\n"  # type: ignore[attr-defined]
