"""The file of answers: what it has already, and how more come to it. A killed run costs what was in flight, no more.

Lines are appended whole and flushed one by one; a half-written last one is repaired by whoever opens the file next.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from limelight.batch.lines import LineError, RefusedLine, RequestLine
from limelight.errors import ConfigError
from limelight.quoting import quoted

FIRST_FAILED_STATUS = 400
_BEGINNING = b'{"id":"batch_req_'


class HttpAnswer(msgspec.Struct, frozen=True):
    """What the endpoint said; `body` is JSON."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the output: `response` of a request that was sent, `error` of a line that was not."""

    id: str
    custom_id: str | None
    response: HttpAnswer | None
    error: LineError | None

    @property
    def has_failed(self) -> bool:
        """Whether there is no good answer."""
        return self.response is None or self.response.status_code >= FIRST_FAILED_STATUS


class Answer(msgspec.Struct, frozen=True):
    """What is remembered of an output line; `number` is its own, from 1."""

    id: str
    number: int
    has_failed: bool


class Answers:
    """What an output file has: by `custom_id`, and by id where the line had none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_custom_id: dict[str, Answer] = {}
        self._without_custom_id: dict[str, Answer] = {}

    def add(self, line: OutputLine, number: int) -> None:
        """One more line of the file."""
        answer = Answer(line.id, number, line.has_failed)
        if line.custom_id is None:
            self._without_custom_id[line.id] = answer
        else:
            self._by_custom_id[line.custom_id] = answer

    def have(self, line: RequestLine | RefusedLine) -> bool:
        """Whether there is an answer to `line`, good or not."""
        return self._of(line) is not None

    def failed(self, line: RequestLine | RefusedLine) -> bool:
        """Whether the answer to `line` is a failure."""
        answer = self._of(line)
        return answer is not None and answer.has_failed

    def check_same(self, line: RequestLine | RefusedLine) -> None:
        """Whether the good answer to this `custom_id`, if there is one, is to this very line.

        Raises:
            ConfigError: it is to another one.
        """
        answer = self._of(line)
        if answer is not None and not answer.has_failed and answer.id != line.id:
            raise ConfigError(
                f"line {answer.number} of {self._path} answers another request {quoted(line.custom_id)} than line "
                f"{line.number} of the input has now; give another --output-file"
            )

    def check_known(self, custom_ids: Collection[str]) -> None:
        """Whether every answer is to one of these.

        Raises:
            ConfigError: one is not.
        """
        strange = next((custom_id for custom_id in self._by_custom_id if custom_id not in custom_ids), None)
        if strange is not None:
            raise ConfigError(
                f"{self._path} has an answer to {quoted(strange)}, which the input does not have: it is another "
                "batch's; give another --output-file"
            )

    def without_failed(self) -> "Answers":
        """The good ones."""
        good = Answers(self._path)
        good._by_custom_id = {name: answer for name, answer in self._by_custom_id.items() if not answer.has_failed}
        return good

    def _of(self, line: RequestLine | RefusedLine) -> Answer | None:
        if line.custom_id is None:
            return self._without_custom_id.get(line.id)
        return self._by_custom_id.get(line.custom_id)


class OutputFile:
    """A file of answers that one process writes. Leaving it removes it again if nothing was written.

    Args:
        path: made if it is not there.

    Attributes:
        path: where it is.
        answers: what it had when it was opened.

    Raises:
        ConfigError: it is no file of answers, another process writes it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        try:
            self.answers, self._end, self._tail = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.closing(self._file):
            if not os.fstat(self._file.fileno()).st_size:
                self.path.unlink(missing_ok=True)

    def repair(self) -> None:
        """Completes a last line that lacks its line feed, or drops what has been written of it."""
        self._file.truncate(self._end + len(self._tail))
        if self._tail:
            self._file.write(b"\n")
            self._file.flush()

    def drop_failed(self) -> None:
        """Removes the failures, so that they can be tried again: all at once, or not at all."""
        beside = self.path.with_name(f"{self.path.name}.tmp")
        with beside.open("wb") as kept:
            for _, raw in self._whole_lines():
                if not _DECODER.decode(raw).has_failed:
                    kept.write(raw)
            kept.flush()
            os.fsync(kept.fileno())
        with self._file:
            beside.replace(self.path)
            self._file = _open(self.path)
        self.answers = self.answers.without_failed()

    def write(self, line: OutputLine) -> None:
        """Appends a line; when this returns, the end of the process cannot take it away."""
        self._file.write(_ENCODER.encode(line) + b"\n")
        self._file.flush()

    def _read(self) -> tuple[Answers, int, bytes]:
        """The answers, where whole lines end, and a whole answer that follows without its line feed."""
        answers = Answers(self.path)
        end = number = 0
        for number, raw in self._whole_lines():
            try:
                answers.add(_DECODER.decode(raw), number)
            except msgspec.MsgspecError:
                raise self._strange(f"line {number}") from None
            end += len(raw)
        self._file.seek(end)
        tail = self._file.read()
        if not tail.startswith(_BEGINNING) and not _BEGINNING.startswith(tail):
            raise self._strange(f"line {number + 1}")
        try:
            last = _DECODER.decode(tail)
        except msgspec.MsgspecError:
            return answers, end, b""
        answers.add(last, number + 1)
        return answers, end, tail

    def _whole_lines(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(0)
        for number, raw in enumerate(self._file, start=1):
            if raw.endswith(b"\n"):
                yield number, raw

    def _strange(self, where: str) -> ConfigError:
        return ConfigError(
            f"{where} of {self.path} is no answer of a batch, so nothing is written to it; give another --output-file"
        )


_DECODER = msgspec.json.Decoder(OutputLine)
_ENCODER = msgspec.json.Encoder()


def _open(path: Path) -> BinaryIO:
    try:
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(f"the output {path} cannot be written: {error.strerror or error}") from None
    try:
        import fcntl
    except ImportError:
        return file  # on Windows nobody keeps two runs apart
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"another process writes {path}; wait for it, or give another --output-file") from None
    except OSError:
        return file  # a file system without locks
    return file
