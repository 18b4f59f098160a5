"""How many values a JSON text has, without reading it: reading many keeps the interpreter's lock for a long time."""

_BEGINS = ",[{:"
_WINDOW = 256 * 1024
"""Characters that are looked through at one go."""


def has_more_values(text: str, limit: int) -> bool:
    """Whether `text`, if it is JSON, may have more than `limit` values and names. A string is one, however long."""
    return _may_have_more(text, limit) and _has_more(text, limit)


def _may_have_more(text: str, limit: int) -> bool:
    number = 1
    for start in range(0, len(text), _WINDOW):
        number += _begins(text, start, start + _WINDOW)
        if number > limit:
            return True
    return False


def _has_more(text: str, limit: int) -> bool:
    number = position = 0
    while position >= 0:
        quote = text.find('"', position)
        end = len(text) if quote < 0 else quote
        number += 1
        for start in range(position, end, _WINDOW):
            number += _begins(text, start, min(start + _WINDOW, end))
            if number > limit:
                return True
        position = -1 if quote < 0 else _end_of_string(text, quote + 1)
    return number > limit


def _begins(text: str, start: int, end: int) -> int:
    return sum(text.count(sign, start, end) for sign in _BEGINS)


def _end_of_string(text: str, position: int) -> int:
    """Behind the quotation mark that ends the string, -1 if none does."""
    while True:
        quote = text.find('"', position)
        if quote < 0:
            return -1
        before = quote
        while before > position and text[before - 1] == "\\":
            before -= 1
        if (quote - before) % 2 == 0:
            return quote + 1
        position = quote + 1
