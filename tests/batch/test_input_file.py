"""The file of requests, looked through before anything runs."""

import json
from pathlib import Path

import pytest

from limelight.batch.input_file import READ_BYTES, check_input, read_lines, unanswered_lines
from limelight.batch.lines import RefusedLine
from limelight.batch.output_file import Answers, OutputFile, OutputLine
from limelight.errors import ConfigError, InvalidRequest
from tests.batch.batch_lines import request, written


def nothing() -> Answers:
    return Answers(Path("out.jsonl"))


def refusal(line: RefusedLine) -> OutputLine:
    return OutputLine(id=line.id, custom_id=line.custom_id, response=None, error=line.error)


def test_lines_are_numbered_as_an_editor_does_and_blank_ones_are_none(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(request("a")).encode() + b"\r\n\n  \n " + json.dumps(request("b")).encode()
    )
    assert [(line.number, line.custom_id) for line in read_lines(path)] == [(1, "a"), (4, "b")]


@pytest.mark.parametrize("length", [READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES])
def test_a_line_of_any_length_is_one_line(tmp_path: Path, length: int) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"x" * length + b"\n" + json.dumps(request("b")).encode())
    first, second = read_lines(path)
    assert (first.number, first.custom_id, second.number, second.custom_id) == (1, None, 2, "b")


def test_a_custom_id_that_stands_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    lines = [request(name) for name in ("a", "b", "a", "c", "b", "a")]
    with pytest.raises(InvalidRequest, match=r"'a' in lines 1 and 3, .*'b' in lines 2 and 5, .*'a' in lines 1 and 6"):
        check_input(written(tmp_path / "in.jsonl", *lines), nothing())
    with pytest.raises(InvalidRequest, match="and 15 more twice"):
        check_input(written(tmp_path / "in.jsonl", *[request("a")] * 21), nothing())


def test_a_twin_counts_even_where_the_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="lines 1 and 2"):
        check_input(written(tmp_path / "in.jsonl", request("a"), request("a", stream=True)), nothing())


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no requests"):
        check_input(written(tmp_path / "in.jsonl", "", " "), nothing())


def test_what_is_answered_is_counted_and_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl", request("a"), "what", request("b", stream=True), "what")
    lines = list(read_lines(path))
    with OutputFile(tmp_path / "out.jsonl") as output:
        for line in lines[1:3]:
            assert isinstance(line, RefusedLine)
            output.write(refusal(line))
    with OutputFile(tmp_path / "out.jsonl") as output:
        remaining = check_input(path, output.answers)
        assert (remaining.num_lines, remaining.num_answered, remaining.num_failed) == (4, 2, 2)
        assert [line.number for line in unanswered_lines(path, output.answers)] == [1, 4]


def test_answers_to_other_requests_are_not_gone_on_with(tmp_path: Path) -> None:
    good = {"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "request_id": "r", "body": {}}}
    out = written(tmp_path / "out.jsonl", {**good, "error": None})
    with OutputFile(out) as output:
        with pytest.raises(ConfigError, match=r"line 1 of .* answers another request 'a' than line 1 of the input"):
            check_input(written(tmp_path / "in.jsonl", request("a")), output.answers)
        with pytest.raises(ConfigError, match="answer to 'a', which the input does not have"):
            check_input(written(tmp_path / "in.jsonl", request("b")), output.answers)
