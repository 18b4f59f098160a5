"""What is told while something takes long: the stage, and how much of it is done. No more than that crosses layers."""

from collections.abc import Callable
from typing import Self

Report = Callable[[str, float | None], None]
"""Told what is being done and how much of that is done, 0 to 1 or None; or a `Note`. One call at a time, from any
thread."""


class Note(str):
    """Something to say in between: no stage, and nothing that takes time."""

    __slots__ = ()


class BytesDone(float):
    """The fraction of a transfer that is done, which also knows of how many bytes.

    A plain number to whoever only wants a fraction; who shows sizes and speeds finds them here.

    Attributes:
        done_bytes: received so far, what was there before included.
        total_bytes: of the whole transfer.
        found_bytes: what was there when it began; counts as done, and not in the speed.
    """

    done_bytes: int
    total_bytes: int
    found_bytes: int

    def __new__(cls, done_bytes: int, total_bytes: int, found_bytes: int = 0) -> Self:
        """`done_bytes` of `total_bytes`, the former at most the latter; nothing of nothing is done."""
        number = super().__new__(cls, min(done_bytes / total_bytes, 1.0) if total_bytes else 1.0)
        number.done_bytes, number.total_bytes, number.found_bytes = done_bytes, total_bytes, found_bytes
        return number
