"""How far a batch is: a bar with tokens per second on a terminal, and what is told at the end."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from tqdm import tqdm

from limelight.batch.output_file import OutputLine
from limelight.cli.terminal import printable, say
from limelight.quoting import shorten

SHOWN_ERRORS = 3
MAX_ERROR_CHARACTERS = 300


class _Usage(msgspec.Struct):
    """Tokens read and written, by all the names that APIs have for them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0

    @property
    def num_input(self) -> int:
        return self.prompt_tokens + self.input_tokens + self.cache_read_input_tokens

    @property
    def num_output(self) -> int:
        return self.completion_tokens + self.output_tokens


class _Answer(msgspec.Struct):
    """What is counted of a body."""

    usage: _Usage | None = None
    error: Any = None


class BatchProgress:
    """Counts what comes out of a batch.

    Args:
        num_lines: of the whole batch.
        num_before: lines that earlier runs have answered.
        clock: seconds.

    Attributes:
        num_answered: lines that this run has answered, failures included.
        num_failed: those of them that have failed.
    """

    def __init__(self, num_lines: int, num_before: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_answered = self.num_failed = 0
        self._clock = clock
        self._started = clock()
        self._num_input_tokens = self._num_output_tokens = 0
        self._errors: Counter[str] = Counter()
        self._bar = tqdm(
            total=num_lines,
            initial=num_before,
            unit=" requests",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )

    def count(self, line: OutputLine) -> None:
        """One more line has been answered."""
        self.num_answered += 1
        self.num_failed += line.has_failed
        if line.response is not None:
            answer = _answer(line.response.body)
            if answer.usage is not None:
                self._num_input_tokens += answer.usage.num_input
                self._num_output_tokens += answer.usage.num_output
            if line.has_failed:
                self._count_error(answer.error.get("message") if isinstance(answer.error, dict) else None)
        elif line.error is not None:
            self._count_error(line.error.message)
        self._bar.set_postfix_str(self._rates(), refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def summary(self) -> str:
        """What this run has done, in one line."""
        failed = f", {self.num_failed} of them failed" if self.num_failed else ""
        return f"{self.num_answered} answered in {self._seconds():.1f} s{failed} ({self._rates()})"

    def tell_errors(self) -> None:
        """Says the first kinds of failures and how often they came."""
        for message, count in list(self._errors.items())[:SHOWN_ERRORS]:
            say(printable(f"failed: {message}{f' ({count} times)' if count > 1 else ''}"))
        others = self.num_failed - sum(list(self._errors.values())[:SHOWN_ERRORS])
        if others:
            say(f"failed: {others} more for other reasons, in the output")

    def _count_error(self, message: object) -> None:
        told = shorten(str(message), MAX_ERROR_CHARACTERS)
        if told in self._errors or len(self._errors) < SHOWN_ERRORS:
            self._errors[told] += 1

    def _rates(self) -> str:
        seconds = self._seconds()
        return (
            f"{self._num_input_tokens / seconds:.1f} tokens/s in, {self._num_output_tokens / seconds:.1f} tokens/s out"
        )

    def _seconds(self) -> float:
        return max(self._clock() - self._started, 1e-3)


def _answer(body: msgspec.Raw) -> _Answer:
    try:
        return msgspec.json.decode(body, type=_Answer)
    except msgspec.ValidationError:
        return _Answer()  # an endpoint that counts otherwise, or not at all
