"""The waiting sequences, in order of service: lower priority value first, then whose share has been served least
(`shares.py`), then earlier arrival.

Nobody starves: once in `AGEING_STEPS` planned steps, the sequence that arrived first among those waiting is *promoted*,
provided that it was added at least that many planned steps ago. Promoted sequences come before all others, by arrival,
and stay promoted until they end, so that they are not preempted for others either. One promotion at a time leaves
priorities their meaning under lasting overload, and works for any range of numbers.

A preempted sequence keeps its arrival and so returns to the front of its class: admission follows the same order, hence
those still waiting in its class arrived later.
"""

import heapq
from collections.abc import Callable

from limelight.actors.scheduling.sequence import Rank, Sequence
from limelight.actors.scheduling.shares import Account, Shares, turn_of

AGEING_STEPS = 256
"""Planned steps between two promotions, and the least wait before one."""

_COMPACT_ABOVE = 64
"""Heap entries that may be stale before a heap is rebuilt, on top of twice the live ones."""


class FairQueue:
    """A heap by rank for each share and a heap by arrival over all of them; entries of removed sequences are skipped.

    Attributes:
        shares: of all live sequences, those that run included.
    """

    __slots__ = ("_by_arrival", "_by_rank", "_next_promotion", "_waiting", "shares")

    def __init__(self) -> None:
        self._waiting: dict[int, Sequence] = {}
        self._by_rank: dict[Account, list[Rank]] = {}
        self.shares = Shares()
        self._by_arrival: list[int] = []
        self._next_promotion = AGEING_STEPS

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, Sequence) and self._waiting.get(sequence.arrival) is sequence

    def push(self, sequence: Sequence) -> None:
        """Add a sequence, new or preempted, by its rank."""
        assert sequence not in self, "a sequence waits once"
        self._waiting[sequence.arrival] = sequence
        account = sequence.account or self.shares.enter(sequence)
        heapq.heappush(self._by_rank.setdefault(account, []), sequence.rank)
        heapq.heappush(self._by_arrival, sequence.arrival)
        self._compact()

    def first(self, among: Callable[[Account], bool] | None = None) -> Sequence | None:
        """The sequence to be served next, left in the queue.

        Args:
            among: which shares are looked at; None: all.
        """
        best: Sequence | None = None
        for account in list(self._by_rank):
            if among is not None and not among(account):
                continue
            sequence = self._first_of(account)
            if sequence is not None and (best is None or turn_of(sequence) < turn_of(best)):
                best = sequence
        return best

    def _first_of(self, account: Account) -> Sequence | None:
        heap = self._by_rank[account]
        while heap:
            sequence = self._waiting.get(heap[0][2])
            if sequence is not None and sequence.rank == heap[0]:
                return sequence
            heapq.heappop(heap)
        del self._by_rank[account]
        return None

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out."""
        del self._waiting[sequence.arrival]

    def age(self, num_planned_steps: int) -> None:
        """Promote at most one sequence; called before each planned step with the number of steps planned so far."""
        if num_planned_steps < self._next_promotion:
            return
        while self._by_arrival:
            sequence = self._waiting.get(self._by_arrival[0])
            if sequence is not None and sequence.rank[0]:
                break
            heapq.heappop(self._by_arrival)
        else:
            return
        if num_planned_steps - sequence.num_added_at >= AGEING_STEPS:
            heapq.heappop(self._by_arrival)
            sequence.rank = (0, 0, sequence.arrival)
            heapq.heappush(self._by_rank[sequence.account], sequence.rank)
            self._next_promotion = num_planned_steps + AGEING_STEPS

    def sequences(self) -> list[Sequence]:
        """All that wait, in no particular order."""
        return list(self._waiting.values())

    def _compact(self) -> None:
        """Keep stale entries, which surface late if at all, from piling up."""
        num_entries = max(sum(map(len, self._by_rank.values())), len(self._by_arrival))
        if num_entries <= 2 * len(self._waiting) + _COMPACT_ABOVE:
            return
        self._by_rank = {}
        for sequence in self._waiting.values():
            self._by_rank.setdefault(sequence.account, []).append(sequence.rank)
        for heap in self._by_rank.values():
            heap.sort()
        self._by_arrival = sorted(self._waiting)
