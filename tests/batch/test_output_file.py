"""The file of answers: a run may end anywhere, and the next one goes on."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limelight.batch.lines import LineError
from limelight.batch.output_file import HttpAnswer, OutputFile, OutputLine
from limelight.errors import ConfigError
from tests.batch.batch_lines import read


def good(custom_id: str, status: int = 200) -> OutputLine:
    response = HttpAnswer(status, "req_1", msgspec.Raw(b'{"text": "\xc3\xa9\\n"}'))
    return OutputLine(id=f"batch_req_{custom_id}", custom_id=custom_id, response=response, error=None)


def bad(number: int) -> OutputLine:
    error = LineError(code="invalid_line", message="no", param=None, line=number)
    return OutputLine(id=f"batch_req_{number}", custom_id=None, response=None, error=error)


def write(path: Path, *lines: OutputLine) -> None:
    with OutputFile(path) as output:
        output.repair()
        for line in lines:
            output.write(line)


def test_answers_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path / "out", good("a"), bad(2))
    write(tmp_path / "out", good("b"))
    assert [line["custom_id"] for line in read(tmp_path / "out")] == ["a", None, "b"]
    assert read(tmp_path / "out")[0]["response"]["body"] == {"text": "é\n"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cut_anywhere_the_file_has_its_whole_answers_and_goes_on(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "out"
    path.unlink(missing_ok=True)
    lines = [good("a"), good("b", 404), bad(3), good("c")]
    write(path, *lines)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    write(path, good("d"))
    ends = [number for number, byte in enumerate(whole) if byte == 0x0A]
    num_kept = sum(end <= cut for end in ends)  # at the line feed itself the answer is whole without it
    expected = [*lines[:num_kept], good("d")]
    assert [line["id"] for line in read(path)] == [line.id for line in expected]


def test_failures_can_be_dropped_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, good("a"), good("b", 500), bad(3), good("c"))
    with OutputFile(path) as output:
        output.repair()
        output.drop_failed()
        output.write(good("b"))
        with pytest.raises(ConfigError, match="another process writes"):
            OutputFile(path)
    assert [line["custom_id"] for line in read(path)] == ["a", "c", "b"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    ["an essay", "an essay\n", '{"id":"batch_req_1"}\n', "[]\n", '{"id":"other"', "\n"],
)
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"line 1 of .* is no answer of a batch"):
        OutputFile(path)
    assert path.read_text() == content


def test_a_strange_line_behind_good_ones_is_told_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, good("a"))
    with path.open("a") as file:
        file.write("what\n")
    with pytest.raises(ConfigError, match="line 2 of"):
        OutputFile(path)


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out"), pytest.raises(ConfigError, match="another process writes"):
        OutputFile(tmp_path / "out")
    write(tmp_path / "out", good("a"))


def test_a_file_to_which_nothing_was_written_is_not_left_behind(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_told_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        OutputFile(tmp_path / "none" / "out")


def test_a_line_as_it_stands_in_the_file(tmp_path: Path) -> None:
    write(tmp_path / "out", bad(7))
    assert json.loads((tmp_path / "out").read_text()) == {
        "id": "batch_req_7",
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_line", "message": "no", "param": None, "line": 7},
    }
