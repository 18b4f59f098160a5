"""The parts that an answer consists of, in the order in which they were written."""

from typing import Protocol

import msgspec


class TextPart(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class ReasoningPart(msgspec.Struct, frozen=True):
    """What the model wrote to itself."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins; calls are numbered from 0 and never interleave."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """The next piece of the arguments of call `index`; joined, the pieces are one JSON object."""

    index: int
    text: str


Part = TextPart | ReasoningPart | CallStart | CallArguments


class ToolCallParser(Protocol):
    """Finds the calls in one choice's text (its reasoning already taken out). One instance per choice.

    Joined parts do not depend on how the text is cut. What cannot be a call is text, and a call that breaks off is
    given as far as it came.
    """

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        ...

    def finish(self) -> list[Part]:
        """The parts that were held back, at the end of the choice."""
        ...
