"""What an actor is, and who watches it.

An actor is one task that owns its state and speaks through channels. If one dies, nobody is left waiting: the watcher
reports it at once and the engine fails every live request.
"""

from collections.abc import Callable
from typing import Protocol

from limelight.errors import EngineFailed


class Actor(Protocol):
    """One task with a channel. `run` returns only by cancellation; returning or raising is its death."""

    name: str

    async def run(self) -> None:
        """Receive and act until cancelled."""
        ...


async def supervise(actor: Actor, died: Callable[[EngineFailed], None], ended: Callable[[], None]) -> None:
    """Run `actor`; call `died` with a typed error if it ends in any way but cancellation, and `ended` in every case.

    A cancelled actor need not come from the engine itself: a host may cancel all tasks of its loop, one after another.
    """
    try:
        await actor.run()
    except Exception as error:  # noqa: BLE001 - the one place where an actor is watched
        failure = EngineFailed(f"the {actor.name} stopped: {type(error).__name__}: {error}")
        failure.__cause__ = error
        died(failure)
    else:
        died(EngineFailed(f"the {actor.name} stopped"))
    finally:
        ended()
