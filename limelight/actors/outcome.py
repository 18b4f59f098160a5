"""Futures that somebody waits for, or waited: settled once, and never a complaint of the loop."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


def settle(outcome: "asyncio.Future[None]", error: BaseException | None = None) -> None:
    """Let `outcome` fail with `error`, or succeed; nothing happens if it is done (or cancelled) already."""
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
        outcome.exception()  # whoever waited may be gone


def mark_heard(outcome: "asyncio.Future[T]") -> None:
    """Nobody waits for a finished future any more: an error in it is not to be reported as one that nobody saw."""
    if not outcome.cancelled():
        outcome.exception()
