"""Who has been served how much: virtual token counters, by which those with equal priority take turns.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): every share has a counter of the tokens
that steps computed for it, divided by its weight; a token that is drawn counts twice a prompt's, one from the prefix
cache nothing. The share with the lowest counter is served next. One that comes back from idleness is lifted to the
lowest of those that are active, so that idle time cannot be saved up.

While one share alone is active nothing is counted and nothing is changed by any of this.
"""

from limelight.actors.scheduling.in_flight import PlannedChunk
from limelight.actors.scheduling.sequence import Sequence

DRAWN_TOKEN = 2.0
"""What a token that is drawn counts, where a prompt's counts 1."""
MAX_REMEMBERED = 4096
"""Idle shares whose counters are ahead of the others', and are therefore kept."""


class Account:
    """One share.

    Attributes:
        weight: of two busy shares, one of weight 3 gets three times what one of weight 1 gets.
        served: virtual tokens so far.
        num_live: its sequences.
        num_seats: those of them that run.
    """

    __slots__ = ("name", "num_live", "num_seats", "served", "weight")

    def __init__(self, name: str, weight: float, served: float) -> None:
        self.name = name
        self.weight = weight
        self.served = served
        self.num_live = 0
        self.num_seats = 0


class Shares:
    """The accounts of all shares that have live sequences."""

    __slots__ = ("_idle", "active")

    def __init__(self) -> None:
        self.active: dict[str, Account] = {}
        self._idle: dict[str, float] = {}

    @property
    def is_contested(self) -> bool:
        """Whether there is anything to be fair about."""
        return len(self.active) > 1

    def enter(self, sequence: Sequence) -> Account:
        """A sequence has come; the weight that it brings holds for its share from now on."""
        account = self.active.get(sequence.share)
        if account is None:
            account = self.active[sequence.share] = self.newcomer(sequence)
            self._idle.pop(sequence.share, None)
        account.weight = sequence.weight
        account.num_live += 1
        sequence.account = account
        return account

    def newcomer(self, sequence: Sequence) -> Account:
        """What the account of a share that is not active will be."""
        lowest = min((other.served for other in self.active.values()), default=0.0)
        return Account(sequence.share, sequence.weight, max(self._idle.get(sequence.share, 0.0), lowest))

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended; it has no seat any more."""
        account = sequence.account
        account.num_live -= 1
        if account.num_live:
            return
        del self.active[account.name]
        if not self.active:
            self._idle.clear()
        elif account.served > min(other.served for other in self.active.values()):
            self._idle[account.name] = account.served
            while len(self._idle) > MAX_REMEMBERED:
                del self._idle[next(iter(self._idle))]

    def charge(self, chunks: list[PlannedChunk]) -> None:
        """Count what a step computes."""
        for chunk in chunks:
            account = chunk.sequence.account
            account.served += _cost(chunk) / account.weight

    def give_back(self, chunks: list[PlannedChunk]) -> None:
        """A step was charged and has failed: those who are still there have not been served by it."""
        for chunk in chunks:
            if not chunk.stale:
                account = chunk.sequence.account
                account.served -= _cost(chunk) / account.weight

    def part(self, account: Account) -> float:
        """Its part of everything, from 0 to 1, among those that are active."""
        return account.weight / sum(other.weight for other in self.active.values())

    def ordered(self, sequences: list[Sequence]) -> list[Sequence]:
        """Sequences in the order of service: priority first, then who has been served least, then arrival."""
        return sorted(sequences, key=turn_of)


def _cost(chunk: PlannedChunk) -> float:
    return DRAWN_TOKEN if chunk.num_tokens == 1 else float(chunk.num_tokens)


def turn_of(sequence: Sequence) -> tuple[int, int, float, int]:
    """Order of service among sequences that run or wait, lower first; it changes as shares are served."""
    promoted, priority, arrival = sequence.rank
    return promoted, priority, sequence.account.served, arrival
