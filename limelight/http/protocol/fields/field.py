"""What every request field does: the one table behind decoding, the documentation and the generated test.

The rule. A field *works*, or it is accepted with *no effect*, or it is *refused* by name. No effect is for fields about
who asks, how the request is filed, and what may be cached: leaving them out cannot change the answer. A field that asks
for a different answer, or for more in it, is refused as long as we cannot give that; its value that asks for what
happens anyway (`accepts`, and always null) is let through.
"""

import enum
from typing import Any

import msgspec


class Effect(enum.StrEnum):
    """What a request field does."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


class Field(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        note: for a refused field the advice that the client gets; else a remark, where the name does not say it all.
        accepts: values of a refused field that ask for what happens anyway.
    """

    effect: Effect
    note: str = ""
    accepts: tuple[Any, ...] = ()


def works(note: str = "") -> Field:
    """A field that works."""
    return Field(Effect.WORKS, note)


def no_effect(note: str) -> Field:
    """A field that is accepted and cannot change the answer; the note says why."""
    return Field(Effect.NO_EFFECT, note)


def refused(note: str, *accepts: Any) -> Field:
    """A field that is refused with advice, unless its value is one of `accepts`."""
    return Field(Effect.REFUSED, note, accepts)
