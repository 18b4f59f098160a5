"""What scheduling tells of its decisions as it makes them, to somebody with a clock."""

from typing import Protocol

from limelight.actors.scheduling.in_flight import PlannedChunk
from limelight.actors.scheduling.sequence import Sequence


class Observer(Protocol):
    """Hears of each decision at once; must change nothing and raise nothing."""

    def seated(self, sequence: Sequence) -> None:
        """A sequence sat down, for the first time or again."""
        ...

    def unseats(self, sequence: Sequence) -> None:
        """A sequence is about to give up seat and pages: it ends, is preempted, or starts again."""
        ...

    def passed_over(self, sequence: Sequence) -> None:
        """A sequence waits from now on because it is the turn of another share, until it is seated or ends."""
        ...

    def planned(self, number: int, chunks: list[PlannedChunk]) -> None:
        """Step `number` is planned."""
        ...

    def ended(self, sequence: Sequence) -> None:
        """A live sequence is about to be forgotten; `unseats` follows if it has a seat."""
        ...


class Unobserved:
    """Nobody listens."""

    def seated(self, sequence: Sequence) -> None:
        """See `Observer`."""

    def unseats(self, sequence: Sequence) -> None:
        """See `Observer`."""

    def passed_over(self, sequence: Sequence) -> None:
        """See `Observer`."""

    def planned(self, number: int, chunks: list[PlannedChunk]) -> None:
        """See `Observer`."""

    def ended(self, sequence: Sequence) -> None:
        """See `Observer`."""
