"""What one rendering of a chat template may cost. Knows values and counts; knows nothing of Jinja's syntax.

A template can hold up everybody in two ways: by never ending, and by one long call into C that keeps the interpreter's
lock. So steps and seconds are counted, and what C would walk through at one go is measured first.
"""

import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Sized, ValuesView
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from jinja2.exceptions import TemplateError
from jinja2.utils import Namespace

MAX_CHARACTERS = 16 * 1024 * 1024
"""Of one text. No prompt comes near this."""
MAX_TOTAL_CHARACTERS = 16 * MAX_CHARACTERS
"""Of all texts that a rendering makes, those that it drops included; an item of a list counts as two."""
MAX_STEPS = 2_000_000
"""Rounds of loops, calls, and items that pass through filters."""
MAX_SECONDS = 5.0
"""Of the thread's CPU time."""
MAX_ITEMS = 100_000
"""Of a list that one call makes, and pieces that it cuts a text into; as many as `range` may have."""
MAX_WRITTEN_CHARACTERS = 1024 * 1024
"""Of the texts in a list or an object that is written out at one go, as by `tojson`."""
MAX_COMPARED_VALUES = 500_000
MAX_COMPARED_CHARACTERS = 4 * MAX_CHARACTERS

_STEPS_BETWEEN_LOOKS = 64
_CONTAINERS = (list, tuple, set, frozenset, Mapping, KeysView, ValuesView, ItemsView)

T = TypeVar("T")


class TemplateLimit(TemplateError):
    """The template asks for more than one rendering may cost; the message names the limit."""


class Size(NamedTuple):
    """Of a value with everything in it; what is in it twice counts twice."""

    values: int
    characters: int


_BOTTOMLESS = Size(1, 2**62)
_SCALAR = Size(1, 8)


class Meter:
    """Counts for one rendering; used by one thread.

    Args:
        clock: seconds that the rendering has taken.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._deadline = clock() + MAX_SECONDS
        self._num_steps = 0
        self._num_characters = 0
        self._sizes: dict[int, tuple[object, Size]] = {}

    def step(self, number: int = 1) -> None:
        """Count `number` steps.

        Raises:
            TemplateLimit: there have been too many, or the time is over.
        """
        before = self._num_steps
        self._num_steps += number
        if self._num_steps > MAX_STEPS:
            raise TemplateLimit(f"it takes more than {MAX_STEPS:,} rounds of loops, calls and filters")
        if before // _STEPS_BETWEEN_LOOKS != self._num_steps // _STEPS_BETWEEN_LOOKS:
            self.look()

    def look(self) -> None:
        """Raises TemplateLimit if the time is over."""
        if self._clock() > self._deadline:
            raise TemplateLimit(f"it takes longer than {MAX_SECONDS:g} seconds")

    def room(self, num_characters: int) -> None:
        """Whether a text of this length may be made; nothing is counted.

        Raises:
            TemplateLimit: it may not.
        """
        if num_characters > MAX_CHARACTERS:
            raise TemplateLimit(
                f"it makes a text of {_written(num_characters)} characters; {MAX_CHARACTERS:,} are allowed"
            )

    def made(self, value: T) -> T:
        """`value` itself, which the template has made.

        Raises:
            TemplateLimit: it is too large, or all that was made is.
        """
        if isinstance(value, str | bytes):
            self.room(len(value))
            self._num_characters += len(value)
        elif isinstance(value, list | tuple | dict | set | frozenset):
            self._num_characters += 2 * len(value)
        if self._num_characters > MAX_TOTAL_CHARACTERS:
            raise TemplateLimit(f"its texts and lists have more than {MAX_TOTAL_CHARACTERS:,} characters together")
        return value

    def size(self, value: object) -> Size:
        """The size of a value. A template changes none, so what was measured once is known."""
        if isinstance(value, str | bytes):
            return Size(1, len(value))
        if isinstance(value, Namespace):
            return _BOTTOMLESS  # it may come to hold itself
        if not isinstance(value, _CONTAINERS):
            return _SCALAR
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        self.step(len(value))
        values = characters = 1
        inner: Iterable[object] = chain(value.keys(), value.values()) if isinstance(value, Mapping) else value
        for item in inner:
            size = self.size(item)
            values += size.values
            characters += size.characters
        measured = Size(values, characters + 4 * values)
        if not isinstance(value, KeysView | ValuesView | ItemsView):
            self._sizes[id(value)] = value, measured
        return measured

    def written(self, value: T, characters: int = MAX_WRITTEN_CHARACTERS) -> T:
        """`value` itself, which is written out as a text at one go.

        Raises:
            TemplateLimit: it is no text, and too large.
        """
        if isinstance(value, str):
            return value
        size = self.size(value)
        if size.values > MAX_ITEMS or size.characters > characters:
            raise TemplateLimit(
                f"it writes out {_described(value)} with {_written(size.values)} values and "
                f"{_written(size.characters)} characters in it; {MAX_ITEMS:,} and {characters:,} are allowed"
            )
        return value

    def compared(self, value: T) -> T:
        """`value` itself, which is compared or looked up.

        Raises:
            TemplateLimit: it is too large.
        """
        if isinstance(value, _CONTAINERS):
            size = self.size(value)
            if size.values > MAX_COMPARED_VALUES or size.characters > MAX_COMPARED_CHARACTERS:
                raise TemplateLimit(
                    f"it compares {_described(value)} with {_written(size.values)} values and "
                    f"{_written(size.characters)} characters in it; {MAX_COMPARED_VALUES:,} and "
                    f"{MAX_COMPARED_CHARACTERS:,} are allowed"
                )
        return value

    def items(self, number: int) -> None:
        """Raises TemplateLimit if one call may not make or take so many items."""
        if number > MAX_ITEMS:
            raise TemplateLimit(f"it makes {_written(number)} items at one go; {MAX_ITEMS:,} are allowed")


def _written(number: int) -> str:
    """Powers of two have more digits than anybody reads."""
    return f"{number:,}" if number < 2**60 else "countless"


def _described(value: Any) -> str:
    return "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, Sized) else "a value"
