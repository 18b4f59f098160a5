"""How messages quote what others wrote: names and values of foreign files and of requests may have megabytes."""

import reprlib

MAX_QUOTED_CHARACTERS = 100
MAX_REASON_CHARACTERS = 300
MAX_WRITTEN_BITS = 2**13
"""Python refuses to write integers of more than 4,300 digits."""


def quoted(value: object) -> str:
    """`repr(value)`; of a long text the head and the length, of a large collection a part."""
    if isinstance(value, str):
        if len(value) <= MAX_QUOTED_CHARACTERS:
            return repr(value)
        return f"{value[:MAX_QUOTED_CHARACTERS]!r}... ({len(value):,} characters)"
    return shorten(_BRIEF.repr(value), 2 * MAX_QUOTED_CHARACTERS)


def shorten(text: str, limit: int = MAX_QUOTED_CHARACTERS) -> str:
    """`text` with its middle cut out beyond `limit` characters, without quotation marks: paths and whole messages."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def encodable(text: object, limit: int = MAX_REASON_CHARACTERS) -> str:
    """A text from outside, short, and without what cannot be written as UTF-8: halves of surrogate pairs."""
    short = shorten(str(text), limit)
    return short if short.isascii() else short.encode(errors="replace").decode()


def explanation(said: object) -> str:
    """What a library, a template or a server says is wrong, which may quote anything at any length."""
    return shorten(str(said), MAX_REASON_CHARACTERS)


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = MAX_QUOTED_CHARACTERS // 2

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= MAX_WRITTEN_BITS else f"<{x.bit_length()} bits>"


_BRIEF = _Brief()
