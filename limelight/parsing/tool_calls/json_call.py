"""Calls that are JSON: `{"name": ..., "arguments": {...}}`, and the pieces of JSON around and inside them.

Arguments are given as the model wrote them, piece by piece, not checked: what is not JSON reaches the client as it is.
"""

import json
from collections.abc import Callable

from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Source, Steps

MAX_NAME_CHARACTERS = 256
"""No function's name is longer; so much of what may be a call is held back at most."""
ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("type", "id")
"""Members beside name and arguments that some models write; any other says that the object is no call."""


def json_object(source: Source, give: Callable[[str], object], end: str | None) -> Steps[bool]:
    """Give the object that comes next, as it is written.

    Args:
        end: a mark that ends it even if it is not complete, except inside a string; it is not taken.

    Returns:
        Whether it is complete.
    """
    brackets = _Brackets()
    while (yield from source.peek()):
        text = source.rest
        for place, character in enumerate(text):
            if brackets.in_string or end is None or character != end[0]:
                brackets.read(character)
                if brackets.depth == 0:
                    give(source.take(place + 1))
                    return True
                continue
            give(source.take(place))
            if (yield from source.starts_with(end)):
                return False
            give(source.take(1))
            break
        else:
            give(source.take(len(text)))
    return False


class _Brackets:
    """How deep a place of a JSON text is in brackets."""

    __slots__ = ("_escaped", "depth", "in_string")

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def read(self, character: str) -> None:
        """Take in the next character."""
        if self._escaped:
            self._escaped = False
        elif character == '"':
            self.in_string = not self.in_string
        elif self.in_string:
            self._escaped = character == "\\"
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1


def json_call(source: Source, answer: Answer, end: str | None, *, may_lack_arguments: bool) -> Steps[bool]:
    """Read the object that comes next and give the call that it stands for.

    Args:
        end: as for `json_object`.
        may_lack_arguments: an object with a name alone is a call.

    Returns:
        Whether it is a call; if not, nothing has been given, and the source is where that became certain.
    """
    reader = _CallReader(source, answer, end)
    complete = yield from reader.read()
    if reader.started:
        return True
    if not complete or reader.name is None or (reader.early_arguments is None and not may_lack_arguments):
        return False
    answer.call(reader.name)
    answer.arguments(reader.early_arguments or "{}")
    source.forget()
    return True


class _CallReader:
    """Reads one object. `early_arguments`: those that came before the name, or that were not written as an object."""

    def __init__(self, source: Source, answer: Answer, end: str | None) -> None:
        self._source = source
        self._answer = answer
        self._end = end
        self.name: str | None = None
        self.started = False
        self.early_arguments: str | None = None

    def read(self) -> Steps[bool]:
        """Read all members; returns whether the object is complete."""
        source = self._source
        source.take(1)
        while True:
            yield from source.skip_any(WHITE_SPACE + ",")
            if (yield from source.skip("}")):
                return True
            key = yield from json_string(source, MAX_NAME_CHARACTERS)
            yield from source.skip_any(WHITE_SPACE)
            if key is None or not (yield from source.skip(":")):
                return False
            yield from source.skip_any(WHITE_SPACE)
            if not (yield from self._value(key)):
                return False

    def _value(self, key: str) -> Steps[bool]:
        """Read the value of `key`; returns whether the object may still be a call, and is not broken off."""
        has_arguments = self.started or self.early_arguments is not None
        if key == "name" and self.name is None:
            self.name = (yield from json_string(self._source, MAX_NAME_CHARACTERS)) or None
            return self.name is not None
        if key in ARGUMENT_KEYS and not has_arguments:
            return (yield from self._arguments())
        if has_arguments or key in OTHER_KEYS:
            return (yield from self._skip_value())
        return False

    def _arguments(self) -> Steps[bool]:
        source = self._source
        first = yield from source.peek()
        if first == "{" and self.name is not None:
            self.started = True
            self._answer.call(self.name)
            source.forget()
            return (yield from json_object(source, self._answer.arguments, self._end))
        if first == "{":
            pieces: list[str] = []
            complete = yield from json_object(source, pieces.append, self._end)
            self.early_arguments = "".join(pieces)
            return complete
        if first == '"':
            self.early_arguments = _as_object((yield from json_string(source, None)))
            return self.early_arguments is not None
        self.early_arguments = "{}"
        return (yield from source.skip("null"))

    def _skip_value(self) -> Steps[bool]:
        source = self._source
        first = yield from source.peek()
        if first in ("{", "["):
            return (yield from json_object(source, _ignore, self._end))
        if first == '"':
            return (yield from json_string(source, None)) is not None
        while (character := (yield from source.peek())) and character not in ",}":
            if self._end is not None and (yield from source.starts_with(self._end)):
                return False
            source.take(1)
        return bool(character)


def json_string(source: Source, longest: int | None) -> Steps[str | None]:
    """The value of the string that comes next; None if there is none, it is broken off, or longer than `longest`."""
    if not (yield from source.skip('"')):
        return None
    written: list[str] = []
    escaped = False
    while character := (yield from source.peek()):
        source.take(1)
        if character == '"' and not escaped:
            return _decoded("".join(written))
        escaped = character == "\\" and not escaped
        written.append(character)
        if longest is not None and len(written) > longest:
            return None
    return None


def _decoded(written: str) -> str | None:
    try:
        value: str = json.loads(f'"{written}"', strict=False)
        value.encode()
    except ValueError:  # a wrong escape, or half of a character
        return None
    return value


def _as_object(text: str | None) -> str | None:
    """`text`, if it is the JSON of an object: arguments that were encoded twice."""
    try:
        return text if text is not None and isinstance(json.loads(text), dict) else None
    except (ValueError, RecursionError):
        return None


def _ignore(text: str) -> None:
    """Members that no client gets."""
