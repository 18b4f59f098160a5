r"""Takes the reasoning out of a model's text as it arrives. Pure: the result depends on the text, never on its cuts.

Rules. A reasoning stands at the beginning of the output, white space before it aside, or not at all: a start mark
further on is text, and so is one after the end of the reasoning. The line feeds beside the marks belong to them, as in
the templates of models that write them (`<think>\n...\n</think>\n\n...`). A reasoning that never ends stays one. What
is held back is bounded (`MAX_HELD_CHARACTERS`), so that a character costs the same wherever it stands.
"""

import enum
from typing import NamedTuple

from limelight.generation import ReasoningFormat

WHITE_SPACE = " \t\r\n"
MAX_HELD_CHARACTERS = 256
"""White space and line feeds beside a mark that can belong to it; what is more is text, or reasoning."""


class Opening(enum.Enum):
    """What an output begins with, as far as its prompt tells."""

    UNKNOWN = enum.auto()
    REASONING = enum.auto()
    TEXT = enum.auto()


def opening(prompt: str, marks: ReasoningFormat) -> Opening:
    """Whether the prompt ends with an open reasoning, or with one that is closed, so that no other will come."""
    end = prompt.rstrip(WHITE_SPACE)
    if end.endswith(marks.start):
        return Opening.REASONING
    return Opening.TEXT if end.endswith(marks.end) else Opening.UNKNOWN


class Split(NamedTuple):
    """What is certain now."""

    reasoning: str
    text: str


class ReasoningSplitter:
    """Splits the text of one choice. Held back is only what may be a mark, or a line feed beside one.

    Args:
        begins: what the prompt tells of the output's beginning.

    Attributes:
        num_taken: characters taken in so far.
        text_begins: where the text begins, in characters of the output, marks included: 0 if there is no reasoning;
            None until it is certain.
    """

    __slots__ = ("_end", "_held", "_start", "_state", "_was_reasoning", "num_taken", "text_begins")

    def __init__(self, marks: ReasoningFormat, begins: Opening) -> None:
        self._start = marks.start
        self._end = marks.end
        self._state = _FIRST_STATE[begins]
        self._held = ""
        self._was_reasoning = begins is Opening.REASONING
        self.num_taken = 0
        self.text_begins: int | None = 0 if begins is Opening.TEXT else None

    @property
    def num_held(self) -> int:
        """Characters held back."""
        return len(self._held)

    @property
    def is_through(self) -> bool:
        """Whether all that follows is text, as it is."""
        return self._state is _State.TEXT

    @property
    def found_reasoning(self) -> bool:
        """Whether the output has a reasoning, be it empty."""
        return self._was_reasoning

    def feed(self, text: str) -> Split:
        """Take in the next piece."""
        self.num_taken += len(text)
        if self.is_through:
            return Split("", text)
        self._held += text
        if self._state is _State.BEFORE_START:
            self._read_start()
        reasoning = ""
        if self._state is _State.AFTER_START:
            self._skip_line_feeds(_State.REASONING)
        if self._state is _State.REASONING:
            reasoning = self._read_reasoning()
        if self._state is _State.AFTER_END:
            self._skip_line_feeds(_State.TEXT)
        if self._state is _State.TEXT:
            text, self._held = self._held, ""
            return Split(reasoning, text)
        return Split(reasoning, "")

    def finish(self) -> Split:
        """What was held back, at the end of the output."""
        held, self._held = self._held, ""
        return Split("", held) if self._state is _State.BEFORE_START else Split(held, "")

    def _read_start(self) -> None:
        begun = self._held.lstrip(WHITE_SPACE)
        is_far = len(self._held) - len(begun) > MAX_HELD_CHARACTERS
        if begun.startswith(self._start) and not is_far:
            self._held = begun[len(self._start) :]
            self._was_reasoning = True
            self._state = _State.AFTER_START
        elif is_far or not self._start.startswith(begun):
            self.text_begins = 0
            self._state = _State.TEXT

    def _read_reasoning(self) -> str:
        held, end = self._held, self._end
        place = held.find(end)
        if place >= 0:
            self._held = held[place + len(end) :]
            self.text_begins = self.num_taken - len(self._held)
            self._state = _State.AFTER_END
            return without_end(held[:place], "\n")
        certain = without_end(held[: len(held) - longest_open_prefix(held, end)], "\n")
        self._held = held[len(certain) :]
        return certain

    def _skip_line_feeds(self, following: "_State") -> None:
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = following


class _State(enum.Enum):
    BEFORE_START = enum.auto()
    AFTER_START = enum.auto()
    REASONING = enum.auto()
    AFTER_END = enum.auto()
    TEXT = enum.auto()


_FIRST_STATE = {
    Opening.UNKNOWN: _State.BEFORE_START,
    Opening.REASONING: _State.AFTER_START,
    Opening.TEXT: _State.TEXT,
}


def without_end(text: str, characters: str) -> str:
    """`text` without the last of these characters at its end, of which there may be `MAX_HELD_CHARACTERS`."""
    end = text[-MAX_HELD_CHARACTERS:]
    return text[: len(text) - len(end) + len(end.rstrip(characters))]


def longest_open_prefix(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a proper prefix of `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
