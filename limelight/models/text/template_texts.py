"""Texts in a chat template: what `+`, `*`, `%` and the methods of strings may do. Measured, then done as by Python.

What is linear and quick may meet a whole conversation; the rest meets texts of `MAX_WORKED_CHARACTERS`.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from limelight.models.text.template_meter import MAX_ITEMS, Meter, TemplateLimit

MAX_WORKED_CHARACTERS = 128 * 1024
MAX_NUMBER = 100_000
"""Of a width, a count or a place after the point."""
MAX_BITS = 2**13
"""Of an integer; Python refuses to write longer ones."""
_MAX_PAIRS = 32 * 1024 * 1024
"""Characters of a text times those that are looked for from its end."""

_DIGITS = re.compile(r"\d+")
_FIELDS = {"%": re.compile(r"%[^%a-zA-Z]*"), "{": re.compile(r"\{[^}]*")}
"""From the mark that begins a field of a format to what says its kind, or its end."""
_NUMBER_METHODS = frozenset({"bit_count", "bit_length", "conjugate", "is_integer"})
_FORWARD = frozenset({"find", "index", "count", "startswith", "endswith", "removeprefix", "removesuffix", "partition"})
_BACKWARD = frozenset({"rfind", "rindex", "rpartition", "strip", "lstrip", "rstrip"})


def added(meter: Meter, left: Any, right: Any) -> Any:
    """`left + right`."""
    if isinstance(left, str) and isinstance(right, str):
        if type(left) is not type(right):  # one of them escapes the other
            worked(meter, left)
            worked(meter, right)
        meter.room(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        meter.items(len(left) + len(right))
    return meter.made(_small(operator.add(left, right)))


def multiplied(meter: Meter, left: Any, right: Any) -> Any:
    """`left * right`."""
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, str | bytes) and isinstance(times, int):
            meter.room(len(repeated) * max(times, 0))
        elif isinstance(repeated, list | tuple) and isinstance(times, int):
            meter.items(len(repeated) * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return meter.made(operator.mul(left, right))


def to_the_power(meter: Meter, left: Any, right: Any) -> Any:
    """`left ** right`."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))
    return meter.made(operator.pow(left, right))


def remainder(meter: Meter, left: Any, right: Any) -> Any:
    """`left % right`, which formats if `left` is a text."""
    if isinstance(left, str | bytes):
        check_format(meter, left, "%", right if isinstance(right, tuple) else (right,))
    return meter.made(operator.mod(left, right))


def joined(meter: Meter, separator: str, texts: Iterable[Any]) -> str:
    """`separator.join(texts)`, of values that are written as texts."""
    written: list[str] = []
    length = 0
    for text in texts:
        meter.step()
        written.append(text if isinstance(text, str) else str(meter.written(text)))
        length += len(written[-1]) + len(separator)
        meter.room(length)
    return meter.made(separator.join(written))


def replaced(meter: Meter, text: str, old: str, new: str, count: int | None = None) -> str:
    """`text.replace(old, new, count)`."""
    if count is None or count < 0:
        count = MAX_ITEMS
        if text.count(old) > MAX_ITEMS:
            raise TemplateLimit(f"it replaces more than {MAX_ITEMS:,} pieces of a text at one go")
    _check_number(count)
    meter.room(len(text) + min(count, text.count(old)) * len(new))
    return meter.made(text.replace(old, new, count))


def worked(meter: Meter, value: Any, limit: int = MAX_WORKED_CHARACTERS) -> Any:
    """`value` itself, a text (or what is written as one) that is gone through character by character.

    Raises:
        TemplateLimit: it is too long.
    """
    length = len(value) if isinstance(value, str | bytes) else meter.size(meter.written(value)).characters
    if length > limit:
        raise TemplateLimit(f"it works on a text of {length:,} characters at one go; {limit:,} are allowed there")
    return value


def check_numbers(values: Iterable[Any]) -> None:
    """Raises TemplateLimit if one of the integers is no sensible width or count."""
    for value in values:
        if isinstance(value, int):
            _check_number(value)


def check_format(meter: Meter, text: str | bytes, mark: str, values: Any) -> None:
    """Whether a formatted text may be made: `mark` begins a field, `values` go in."""
    worked(meter, text)
    fields = _FIELDS[mark].findall(text.decode("latin-1") if isinstance(text, bytes) else text)
    numbers = [int(digits) if len(digits) < 8 else 10**8 for field in fields for digits in _DIGITS.findall(field)]
    inner = values.values() if isinstance(values, Mapping) else values
    if any("*" in field or "{" in field[1:] for field in fields):  # a value says how wide the field is
        numbers += [abs(value) for value in inner if isinstance(value, int)]
    widest = max(numbers, default=0)
    _check_number(widest)
    meter.room(len(text) + len(fields) * (widest + sum(meter.size(value).characters for value in inner)))
    for value in inner:
        meter.written(value)


def call_method(meter: Meter, call: Callable[..., Any], owner: Any, name: str, args: Any, kwargs: Any) -> Any:
    """`call(*args, **kwargs)`, which is the method `name` of the text or number `owner`.

    Raises:
        TemplateLimit: it would hold up everybody.
    """
    if isinstance(owner, int | float):
        if name not in _NUMBER_METHODS:
            raise TemplateLimit(f"it calls {name} of a number, which is not allowed")
        return call(*args, **kwargs)
    if name in _FORWARD:
        return meter.made(call(*args, **kwargs))
    if name in _BACKWARD:
        _check_pairs(owner, args)
        return meter.made(call(*args, **kwargs))
    if isinstance(owner, str) and name in ("split", "rsplit"):
        return _split(meter, call, owner, name, *args, **kwargs)
    if isinstance(owner, str) and name == "join":
        return _join(meter, call, owner, *args, **kwargs)
    if type(owner) is str and name == "replace" and all(isinstance(arg, str) for arg in args[:2]):
        return replaced(meter, owner, *args, **kwargs)
    if isinstance(owner, str) and name in ("format", "format_map"):
        mapped = args[0] if name == "format_map" and args and isinstance(args[0], Mapping) else None
        check_format(meter, owner, "{", (*args, *kwargs.values()) if mapped is None else mapped)
        return meter.made(call(*args, **kwargs))
    return _other(meter, call, owner, name, args, kwargs)


def _other(meter: Meter, call: Callable[..., Any], owner: Any, name: str, args: Any, kwargs: Any) -> Any:
    worked(meter, owner)
    given = (*args, *kwargs.values())
    check_numbers(given)
    for value in given:
        meter.written(value)
    if name == "expandtabs":
        meter.room(len(owner) * max((value for value in given if isinstance(value, int)), default=8))
    return meter.made(call(*args, **kwargs))


def _split(
    meter: Meter, call: Callable[..., Any], text: str, name: str, sep: str | None = None, maxsplit: int = -1
) -> Any:
    if name == "rsplit":
        _check_pairs(text, (sep,))
    pieces = call(sep, MAX_ITEMS if maxsplit < 0 else min(maxsplit, MAX_ITEMS))
    if len(pieces) > MAX_ITEMS:
        raise TemplateLimit(f"it splits a text into more than {MAX_ITEMS:,} pieces")
    meter.made(text)  # the pieces are as long together
    return meter.made(pieces)


def _join(meter: Meter, call: Callable[..., Any], separator: str, texts: Iterable[Any]) -> Any:
    given = []
    for text in texts:
        meter.step()
        given.append(text)
    meter.room(sum(len(text) + len(separator) for text in given if isinstance(text, str)))
    return meter.made(call(given))


def _check_pairs(text: Any, args: Iterable[Any]) -> None:
    for sought in args:
        if isinstance(sought, str) and len(sought) * len(text) > _MAX_PAIRS and len(sought) > 1:
            raise TemplateLimit(
                f"it looks for {len(sought):,} characters from an end of a text of {len(text):,}; the product may be "
                f"{_MAX_PAIRS:,}"
            )


def _check_number(number: int) -> None:
    if abs(number) > MAX_NUMBER:
        raise TemplateLimit(f"it asks for a width or a count above {MAX_NUMBER:,}")


def _check_bits(number: int) -> None:
    if number > MAX_BITS:
        raise TemplateLimit(f"it computes an integer of more than {MAX_BITS:,} bits")


def _small(value: Any) -> Any:
    if isinstance(value, int):
        _check_bits(value.bit_length())
    return value
