"""In which order those who wait may be expected to sit down: what queue positions and forecasts are counted by.

The rules are those of `fair_queue.py` and `batch.py`. What is not known yet is taken to be as it was lately: each one
who sits down is taken to cost its share the tokens of its prompt and of an answer of the usual length.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable

from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.shares import DRAWN_TOKEN, Account, Shares

Turn = tuple[int, int, bool, float, int]
"""Promoted, priority, whether its share has its part of the seats, what it has been served, arrival; lower first."""


class Turns:
    """Of waiting sequences, some of which may not have been added yet.

    Args:
        shares: of those that have.
        num_seats: all there are.
        answer_tokens: how many a sequence may be expected to draw.
    """

    def __init__(self, shares: Shares, num_seats: int, answer_tokens: Callable[[Sequence], int]) -> None:
        self._shares = shares
        self._num_seats = num_seats
        self._answer_tokens = answer_tokens
        self._new: dict[str, Account] = {}

    def account_of(self, sequence: Sequence) -> Account:
        """Its share's; of one that has not been added, as it would be."""
        if sequence.account is not None:
            return sequence.account  # type: ignore[no-any-return]
        account = self._shares.active.get(sequence.share) or self._new.get(sequence.share)
        if account is None:
            account = self._new[sequence.share] = self._shares.newcomer(sequence)
        return account

    def are_taken(self, sequence: Sequence) -> bool:
        """Whether more than one share would be active with `sequence`; otherwise the order is that of ranks."""
        return len(self._shares.active.keys() | {sequence.share}) > 1

    def in_order(self, waiting: Iterable[Sequence]) -> list[tuple[Sequence, bool]]:
        """All of them, the next one first, each with whether it may take a seat back: its share has too few by then."""
        queues: dict[Account, deque[Sequence]] = {}
        for sequence in sorted(waiting, key=lambda each: each.rank):
            queues.setdefault(self.account_of(sequence), deque()).append(sequence)
        seats = {account: account.num_seats for account in queues}
        served = {account: account.served for account in queues}

        def turn(account: Account) -> Turn:
            promoted, priority, arrival = queues[account][0].rank
            return promoted, priority, seats[account] + 1 > self.own_seats(account), served[account], arrival

        heads = [(turn(account), number, account) for number, account in enumerate(queues)]
        heapq.heapify(heads)
        order = []
        while heads:
            (_, _, has_its_part, _, _), number, account = heads[0]
            sequence = queues[account].popleft()
            order.append((sequence, not has_its_part))
            cost = sequence.num_expected_tokens + DRAWN_TOKEN * self._answer_tokens(sequence)
            served[account] += cost / account.weight
            seats[account] += 1
            if queues[account]:
                heapq.heapreplace(heads, (turn(account), number, account))
            else:
                heapq.heappop(heads)
        return order

    def num_taken_back(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Seats that others have beyond their part, and that `sequence` is not served after."""
        theirs: dict[Account, int] = {}
        for other in running:
            if other.rank[:2] >= sequence.rank[:2]:
                theirs[other.account] = theirs.get(other.account, 0) + 1
        beyond = {account: math.ceil(account.num_seats - self.own_seats(account)) for account in theirs}
        return sum(max(0, min(num, beyond[account])) for account, num in theirs.items())

    def own_seats(self, account: Account) -> float:
        """Its part of the seats, one at least."""
        weights = sum(other.weight for other in (*self._shares.active.values(), *self._new.values()))
        return max(1.0, account.weight / weights * self._num_seats)
