"""The file of requests: read line by line, never whole, and looked through once before anything runs."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from limelight.batch.lines import MAX_LINE_BYTES, RefusedLine, RequestLine, parse_line
from limelight.batch.output_file import Answers
from limelight.errors import InvalidRequest
from limelight.quoting import quoted

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NUM_NAMED_TWINS = 5
READ_BYTES = MAX_LINE_BYTES + 1024
"""More than the longest line and the blanks that may stand around it."""


class Remaining(msgspec.Struct, frozen=True):
    """How much of a file there is to do.

    Attributes:
        num_lines: lines that are not blank.
        num_answered: those of them that the output has already, failed ones included.
        num_failed: those of the answered that have failed.
    """

    num_lines: int
    num_answered: int
    num_failed: int


def read_lines(path: Path) -> Iterator[RequestLine | RefusedLine]:
    """Every line that is not blank, in order; at most one of them in memory.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(READ_BYTES):
            number += 1
            rest = raw
            while len(rest) == READ_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(READ_BYTES)  # of a line that is too long: it is told by its head
            line = raw.removeprefix(BYTE_ORDER_MARK).strip() if number == 1 else raw.strip()
            if line:
                yield parse_line(number, line)


def unanswered_lines(path: Path, answers: Answers) -> Iterator[RequestLine | RefusedLine]:
    """The lines that the output has no answer to; raises as `read_lines`."""
    return (line for line in read_lines(path) if not answers.have(line))


def check_input(path: Path, answers: Answers) -> Remaining:
    """Looks through the whole file, beside what the output has of it.

    Raises:
        InvalidRequest: it has no line, a `custom_id` stands in it twice, or the output belongs to other requests.
        OSError: the file cannot be read.
    """
    numbers: dict[str, int] = {}
    twins: list[tuple[str, int, int]] = []
    num_lines = num_answered = num_failed = 0
    for line in read_lines(path):
        num_lines += 1
        if answers.have(line):
            num_answered += 1
            num_failed += answers.failed(line)
        if line.custom_id is None:
            continue
        first = numbers.setdefault(line.custom_id, line.number)
        if first != line.number:
            twins.append((line.custom_id, first, line.number))
        answers.check_same(line)
    if not num_lines:
        raise InvalidRequest(f"{path} has no requests; write one JSON object per line")
    if twins:
        raise InvalidRequest(f"{path} has {_twins(twins)}; give each line its own custom_id")
    answers.check_known(numbers)
    return Remaining(num_lines, num_answered, num_failed)


def _twins(twins: list[tuple[str, int, int]]) -> str:
    told = [f"custom_id {quoted(name)} in lines {first} and {again}" for name, first, again in twins[:NUM_NAMED_TWINS]]
    rest = len(twins) - len(told)
    return ", ".join(told) + (f", and {rest} more twice" if rest else "")
