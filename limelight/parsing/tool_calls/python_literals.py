"""Literals of Python -> JSON, while they are written."""

import re
from collections.abc import Callable

from limelight.parsing.tool_calls.source import WHITE_SPACE, Source, Steps
from limelight.parsing.tool_calls.words import PYTHON_CONSTANTS, json_value, quoted

MAX_DEPTH = 32
"""Containers within containers; more is not read."""
DELIMITERS = ",)]}:" + WHITE_SPACE
CLOSING = {"[": "]", "(": ")", "{": "}"}
PLAIN = re.compile(r"[^\\\"']+")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}

Give = Callable[[str], object]


def literal(source: Source, give: Give, depth: int = 0) -> Steps[bool]:
    """Give the literal that comes next as JSON, and stop before the delimiter behind it.

    Returns:
        Whether it is complete, and a delimiter follows.
    """
    first = yield from source.peek()
    if first in ("'", '"'):
        complete = yield from _string(source, give, first)
    elif first in CLOSING:
        complete = depth < MAX_DEPTH and (yield from _container(source, give, first, depth))
    else:
        word = yield from _word(source)
        give(_json_of(word))
        complete = word != ""
    if not complete:
        return False
    yield from source.skip_any(WHITE_SPACE)
    following = yield from source.peek()
    return following != "" and following in DELIMITERS


def _container(source: Source, give: Give, opening: str, depth: int) -> Steps[bool]:
    """A list, a tuple (both become arrays) or a dictionary."""
    is_dictionary = opening == "{"
    source.take(1)
    give("{" if is_dictionary else "[")
    separator = ""
    while True:
        yield from source.skip_any(WHITE_SPACE + ",")
        if (yield from source.skip(CLOSING[opening])):
            give("}" if is_dictionary else "]")
            return True
        give(separator)
        separator = ", "
        if is_dictionary:
            if not (yield from _key(source, give)):
                return False
            give(": ")
        if not (yield from literal(source, give, depth + 1)):
            return False


def _key(source: Source, give: Give) -> Steps[bool]:
    """A key and the colon behind it. JSON knows strings only."""
    first = yield from source.peek()
    if first in ("'", '"'):
        complete = yield from _string(source, give, first)
    else:
        word = yield from _word(source)
        give(quoted(word))
        complete = word != ""
    yield from source.skip_any(WHITE_SPACE)
    colon = yield from source.skip(":")
    yield from source.skip_any(WHITE_SPACE)
    return complete and colon


def _word(source: Source) -> Steps[str]:
    """Everything up to a delimiter; "" if the text ends before one."""
    written: list[str] = []
    while character := (yield from source.peek()):
        if character in DELIMITERS:
            return "".join(written)
        written.append(source.take(1))
    return ""


def _json_of(word: str) -> str:
    """A number or constant; any other word is a string."""
    if not word:
        return ""
    try:
        json_value(word)
    except ValueError:
        return _number(word) or quoted(word)
    return PYTHON_CONSTANTS.get(word, word)


def _number(word: str) -> str | None:
    """Numbers that Python writes otherwise than JSON: `1_000`, `0x10`, `.5`, `+1`."""
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        return None
    return repr(number) if abs(number) < float("inf") else None


def _string(source: Source, give: Give, quote: str) -> Steps[bool]:
    """A string in single or triple quotes."""
    end = quote * 3 if (yield from source.skip(quote * 3)) else quote
    if end == quote:
        source.take(1)
    give('"')
    while (yield from source.peek()) != "":
        if plain := PLAIN.match(source.rest):
            give(quoted(source.take(plain.end()))[1:-1])
        elif (yield from source.skip(end)):
            give('"')
            return True
        elif (yield from source.skip("\\")):
            if not (yield from _escape(source, give)):
                return False
        else:
            give(quoted(source.take(1))[1:-1])
    return False


def _escape(source: Source, give: Give) -> Steps[bool]:
    """What stands behind a backslash; False if the text ends in it."""
    kind = yield from source.peek()
    if not kind:
        return False
    source.take(1)
    if kind in ESCAPES:
        give(quoted(ESCAPES[kind])[1:-1])
        return True
    if kind not in HEX_ESCAPES:
        given = kind if kind in "\\'\"" else "\\" + kind  # Python keeps the backslash of an unknown escape
        give(quoted(given)[1:-1])
        return True
    digits = yield from source.take_while(_is_hex_digit, HEX_ESCAPES[kind])
    if len(digits) < HEX_ESCAPES[kind]:
        if not (yield from source.peek()):
            return False
        give(quoted("\\" + kind + digits)[1:-1])
        return True
    code = int(digits, 16)
    if code <= 0xFFFF:
        give(f"\\u{code:04x}")  # may be half of a character, whose other half follows
    else:
        give(quoted(chr(code) if code <= 0x10FFFF else "\\" + kind + digits)[1:-1])
    return True


def _is_hex_digit(character: str) -> bool:
    return character in "0123456789abcdefABCDEF"
