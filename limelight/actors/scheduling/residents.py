"""The running sequences and what they hold: seats and pages. Decides nothing; keeps the books."""

import bisect

from limelight.actors.scheduling.observer import Observer
from limelight.actors.scheduling.page_pool import PagePool
from limelight.actors.scheduling.prefix_cache import PrefixCache
from limelight.actors.scheduling.sequence import Sequence
from limelight.step import Capacity


class Residents:
    """Owner of pool, prefix cache and seats.

    Attributes:
        running: by rank, best first. Changed by `seat` and `unseat` only.
        pool: read by others, changed here.
        cache: read by others, changed here.
    """

    __slots__ = (
        "_free_seats",
        "_num_seats",
        "_observer",
        "_page_size",
        "_prefix_caching",
        "_released",
        "cache",
        "pool",
        "running",
    )

    def __init__(self, capacity: Capacity, observer: Observer, *, prefix_caching: bool) -> None:
        self._observer = observer
        self._page_size = capacity.page_size
        self._num_seats = capacity.num_seats
        self._prefix_caching = prefix_caching
        self._free_seats = list(range(capacity.num_seats - 1, -1, -1))
        self._released: list[int] = []
        self.cache = PrefixCache()
        self.pool = PagePool(capacity.num_pages, self.cache)
        self.running: list[Sequence] = []

    @property
    def num_seats(self) -> int:
        """All of them."""
        return self._num_seats

    @property
    def num_free_seats(self) -> int:
        """Seats that nobody sits on."""
        return len(self._free_seats)

    def cached_pages(self, sequence: Sequence) -> list[int]:
        """Cached pages that continue what `sequence` holds. Left to compute are at least its last token, and rows of
        which it is to tell something.
        """
        pages: list[int] = []
        if not self._prefix_caching or not sequence.reads_cache or sequence.num_computed_tokens % self._page_size:
            return pages
        num_tokens = sequence.num_tokens - 1
        if sequence.readout is not None:
            num_tokens = min(num_tokens, sequence.readout.num_cacheable_tokens)
        first = len(sequence.pages)
        for index in range(first, num_tokens // self._page_size):
            page = self.cache.find(sequence.chain.digest(index, sequence.token_ids, self._page_size))
            if page is None:
                break
            pages.append(page)
        return pages

    def seat(self, sequence: Sequence) -> None:
        """Let a waiting sequence sit down; there must be a free seat.

        The seat may have been given up since the last step: both deltas are then in the same step, release first.
        """
        assert sequence.seat is None
        sequence.seat = self._free_seats.pop()
        sequence.drew_in_seat = False
        bisect.insort(self.running, sequence, key=_rank)
        if sequence.account is not None:
            sequence.account.num_seats += 1
        self._observer.seated(sequence)

    def unseat(self, sequence: Sequence) -> None:
        """Take seat and pages from a running sequence; its tokens and those being drawn for it stay."""
        assert sequence.seat is not None
        self._observer.unseats(sequence)
        del self.running[bisect.bisect_left(self.running, sequence.rank, key=_rank)]
        if sequence.account is not None:
            sequence.account.num_seats -= 1
        self._free_seats.append(sequence.seat)
        self._released.append(sequence.seat)
        self.pool.release(sequence.pages)
        sequence.seat = None
        sequence.pages = []
        sequence.num_computed_tokens = sequence.num_sent_pages = sequence.num_registered_pages = 0

    def take_released(self) -> tuple[int, ...]:
        """Seats given up since the last call, for the step that is being planned."""
        released = tuple(self._released)
        self._released.clear()
        return released

    def adopt(self, sequence: Sequence, pages: list[int]) -> None:
        """Append cached pages, looked up just now, to the table of a running sequence: their tokens are computed."""
        if not pages:
            return
        for page in pages:
            self.pool.retain(page)
        sequence.pages += pages
        sequence.num_computed_tokens += len(pages) * self._page_size
        sequence.num_registered_pages = len(sequence.pages)

    def num_slots(self, sequence: Sequence) -> int:
        """Tokens that a running sequence could compute next with its own pages and all free ones."""
        num_pages = len(sequence.pages) + self.pool.num_free
        return num_pages * self._page_size - sequence.num_computed_tokens

    def advance(self, sequence: Sequence, num_tokens: int, step: int) -> None:
        """Count `num_tokens` more tokens as computed by step number `step`, on pages allocated here.

        Pages that are full now are visible to the prefix cache at once, for this step and later ones.
        """
        sequence.num_computed_tokens += num_tokens
        while len(sequence.pages) * self._page_size < sequence.num_computed_tokens:
            sequence.pages.append(self.pool.allocate(step))
        self.register(sequence)

    def register(self, sequence: Sequence) -> None:
        """Offer the full pages of a running sequence to the prefix cache, as far as their tokens are known."""
        if not self._prefix_caching:
            return
        num_full = min(sequence.num_computed_tokens, len(sequence.token_ids)) // self._page_size
        for index in range(sequence.num_registered_pages, num_full):
            digest = sequence.chain.digest(index, sequence.token_ids, self._page_size)
            self.cache.insert(digest, sequence.pages[index])
            sequence.num_registered_pages = index + 1

    def check(self) -> None:
        """Raise AssertionError unless seats, pages and page tables agree."""
        self.pool.check(sequence.pages for sequence in self.running)
        held = [sequence.seat for sequence in self.running if sequence.seat is not None]
        assert sorted([*held, *self._free_seats]) == list(range(self._num_seats)), "seats are lost or taken twice"
        assert len(set(self._released)) == len(self._released), "a seat is released twice in one step"
        ranks = [sequence.rank for sequence in self.running]
        assert ranks == sorted(ranks), "running sequences are out of order"
        for sequence in self.running:
            assert len(set(sequence.pages)) == len(sequence.pages), "a page is twice in one table"
            num_needed = -(-sequence.num_computed_tokens // self._page_size)
            assert len(sequence.pages) >= num_needed, "tokens have no pages"
            assert len(sequence.pages) == num_needed or sequence.lookup, "a sequence without guesses has spare pages"
            for index in range(sequence.num_registered_pages):
                digest = sequence.chain.digest(index, sequence.token_ids, self._page_size)
                assert self.cache.digest_of(sequence.pages[index]) in (None, digest), "a page is cached as another"


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank
