"""The text of a choice on its way into a format's generator, and the parts on their way out."""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from limelight.parsing.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from limelight.parsing.reasoning import longest_open_prefix, without_end

Value = TypeVar("Value")
Steps = Generator[None, None, Value]
"""A computation that yields whenever it needs more text, and goes on when there is more or the text has ended."""

WHITE_SPACE = " \t\r\n"
PIECE_CHARACTERS = 4096
"""A longer text is parsed in pieces: looking for a mark costs as much as there is to look at."""


class Source:
    """Characters in order. What has been taken can be had back from the last checkpoint on.

    Attributes:
        ended: no more text will come.
    """

    __slots__ = ("_at", "_checkpoint", "_text", "ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._checkpoint: int | None = None
        self.ended = False

    def push(self, text: str) -> None:
        """More has arrived."""
        start = self._at if self._checkpoint is None else self._checkpoint
        self._text = self._text[start:] + text
        self._at -= start
        if self._checkpoint is not None:
            self._checkpoint = 0

    @property
    def rest(self) -> str:
        """What is there and has not been taken."""
        return self._text[self._at :]

    def take(self, num_characters: int) -> str:
        """The next characters, which are there."""
        start = self._at
        self._at += num_characters
        return self._text[start : self._at]

    def checkpoint(self) -> None:
        """From here on, what is taken can be had back."""
        self._checkpoint = self._at

    def forget(self) -> None:
        """What has been taken is not wanted back."""
        self._checkpoint = None

    def since_checkpoint(self) -> str:
        """What has been taken since the checkpoint, which is gone then."""
        assert self._checkpoint is not None, "set before anything that may turn out to be text"
        start, self._checkpoint = self._checkpoint, None
        return self._text[start : self._at]

    def peek(self) -> Steps[str]:
        """The next character, "" at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def starts_with(self, mark: str) -> Steps[bool]:
        """Whether `mark` comes next; waits only while that is open."""
        while True:
            if self._text.startswith(mark, self._at):
                return True
            if self.ended or not mark.startswith(self.rest):
                return False
            yield

    def skip(self, mark: str) -> Steps[bool]:
        """Take `mark` if it comes next; returns whether it did."""
        found = yield from self.starts_with(mark)
        if found:
            self.take(len(mark))
        return found

    def skip_last(self, mark: str) -> Steps[bool]:
        """As `skip`, for a mark that the end of the text may have cut off."""
        if (yield from self.skip(mark)):
            return True
        if self.ended and self.rest and mark.startswith(self.rest):
            self.take(len(self.rest))
            return True
        return False

    def skip_any(self, characters: str) -> Steps[None]:
        """Take all of these characters that come next."""
        while (character := (yield from self.peek())) and character in characters:
            self.take(1)

    def take_while(self, belongs: Callable[[str], bool], longest: int) -> Steps[str]:
        """The next characters that belong together, `longest` at most."""
        taken: list[str] = []
        while len(taken) < longest and (character := (yield from self.peek())) and belongs(character):
            taken.append(self.take(1))
        return "".join(taken)

    def take_until(self, marks: Sequence[str], longest: int) -> Steps[str | None]:
        """The text before the first of `marks`, which is not taken itself.

        None, and nothing is taken, if the text ends before, or there are more than `longest` characters.
        """
        while True:
            rest = self.rest
            places = [place for mark in marks if (place := rest.find(mark, 0, longest + len(mark))) >= 0]
            if places:
                return self.take(min(places))
            if self.ended or len(rest) > longest + max(map(len, marks)):
                return None
            yield


class Answer:
    """Collects parts; neighbours of one kind are joined."""

    __slots__ = ("_num_calls", "_parts")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._num_calls = 0

    def text(self, text: str) -> None:
        """Text for the reader."""
        if not text:
            return
        if self._parts and isinstance(last := self._parts[-1], TextPart):
            self._parts[-1] = TextPart(last.text + text)
        else:
            self._parts.append(TextPart(text))

    def reasoning(self, text: str) -> None:
        """Text of the model for itself."""
        if text:
            self._parts.append(ReasoningPart(text))

    def call(self, name: str) -> None:
        """A call begins."""
        self._parts.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """The next piece of the arguments of the call that began last."""
        if not text:
            return
        index = self._num_calls - 1
        if self._parts and isinstance(last := self._parts[-1], CallArguments):
            self._parts[-1] = CallArguments(index, last.text + text)
        else:
            self._parts.append(CallArguments(index, text))

    def take(self) -> list[Part]:
        """What has been collected since the last call."""
        parts, self._parts = self._parts, []
        return parts


Format = Callable[[Source, Answer], Steps[None]]


class IncrementalParser:
    """A `ToolCallParser` that runs a format's generator."""

    def __init__(self, parse: Format) -> None:
        self._source = Source()
        self._answer = Answer()
        self._steps = parse(self._source, self._answer)

    def feed(self, text: str) -> list[Part]:
        """See `ToolCallParser.feed`."""
        for start in range(0, len(text), PIECE_CHARACTERS):
            self._source.push(text[start : start + PIECE_CHARACTERS])
            next(self._steps, None)
        return self._answer.take()

    def finish(self) -> list[Part]:
        """See `ToolCallParser.finish`."""
        self._source.ended = True
        next(self._steps, None)
        return self._answer.take()


def copy_until(
    source: Source, give: Callable[[str], object], marks: Sequence[str], trim: Callable[[str], str]
) -> Steps[str | None]:
    """Give all that stands before the first of `marks`, as soon as it is certain, and return that mark.

    Args:
        trim: cuts from the end of a text what belongs to a mark behind it; this comes next then, and the mark.

    Returns:
        None at the end of the text, all of which has been given.
    """
    while True:
        rest = source.rest
        found = min(((place, mark) for mark in marks if (place := rest.find(mark)) >= 0), default=None)
        if found is not None:
            give(source.take(len(trim(rest[: found[0]]))))
            return found[1]
        if source.ended:
            give(source.take(len(rest)))
            return None
        held = max(longest_open_prefix(rest, mark) for mark in marks)
        give(source.take(len(trim(rest[: len(rest) - held]))))
        yield


def text_before(source: Source, answer: Answer, marks: Sequence[str]) -> Steps[str | None]:
    """Give all text before the first of `marks`, which comes next then; None at the end of the text.

    The checkpoint is before the white space in front of the mark, which is given only if no call follows.
    """
    mark = yield from copy_until(source, answer.text, marks, _without_white_space)
    if mark is not None:
        source.checkpoint()
        source.take(source.rest.index(mark))
    return mark


def _without_white_space(text: str) -> str:
    return without_end(text, WHITE_SPACE)


def text_to_the_end(source: Source, answer: Answer) -> Steps[None]:
    """Give everything that follows as text."""
    source.forget()
    while True:
        answer.text(source.take(len(source.rest)))
        if source.ended:
            return
        yield
