"""The pages of the KV pool: who holds them and in which order free ones are reused.

Pages are reference-counted. A free page (no holder) keeps its place in the prefix cache until it is reused; pages
outside the cache are reused first, cached ones last, each least recently used first.

Giving a page up while a step in flight still writes to it is safe at any pipeline depth: steps run in the order in
which they were planned, so a later step's owner writes after the last write of the earlier one, and reads only slots
that it wrote itself. `allocated_at` tells a later failure whether a page still holds what an earlier step wrote.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence

from limelight.actors.scheduling.prefix_cache import PrefixCache


class PagePool:
    """All pages, numbered 0 to `num_pages - 1`.

    Args:
        cache: told when a page is reused; decides which free pages are kept longest.
    """

    __slots__ = ("_allocated_at", "_cache", "_free", "_free_cached", "_num_holders", "num_pages")

    def __init__(self, num_pages: int, cache: PrefixCache) -> None:
        self.num_pages = num_pages
        self._cache = cache
        self._num_holders = [0] * num_pages
        self._allocated_at = [0] * num_pages
        self._free: deque[int] = deque(range(num_pages))
        self._free_cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Pages without a holder, cached or not."""
        return len(self._free) + len(self._free_cached)

    def is_free(self, page: int) -> bool:
        """Whether nobody holds `page`."""
        return self._num_holders[page] == 0

    def allocated_at(self, page: int) -> int:
        """Number of the step for which `page` was last handed out for writing."""
        return self._allocated_at[page]

    def allocate(self, step: int) -> int:
        """Hand out a free page for writing in step number `step` and later; there must be one."""
        assert self.num_free, "the caller checks num_free"
        if self._free:
            page = self._free.popleft()
        else:
            page, _ = self._free_cached.popitem(last=False)
            self._cache.forget(page)
        self._num_holders[page] = 1
        self._allocated_at[page] = step
        return page

    def retain(self, page: int) -> None:
        """One more holder for a page that is cached, free or not; holders of a shared page only read it."""
        assert page in self._cache, f"page {page} is not in the prefix cache"
        if self._num_holders[page] == 0:
            del self._free_cached[page]
        self._num_holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each page of a page table; its tail is reused before its head."""
        for page in reversed(pages):
            assert self._num_holders[page] > 0, f"page {page} is released more often than it is held"
            self._num_holders[page] -= 1
            if self._num_holders[page]:
                continue
            if page in self._cache:
                self._free_cached[page] = None
            else:
                self._free.append(page)

    def withdraw(self, page: int) -> None:
        """Take `page` out of the prefix cache: its content can't be trusted. Holders keep it."""
        self._cache.forget(page)
        if page in self._free_cached:
            del self._free_cached[page]
            self._free.append(page)

    def check(self, page_tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the counts agree with the given page tables, which are all there are."""
        holders = Counter(page for table in page_tables for page in table)
        assert [holders[page] for page in range(self.num_pages)] == self._num_holders, "reference counts are wrong"
        free = [*self._free, *self._free_cached]
        assert sorted(free) == [page for page in range(self.num_pages) if not holders[page]], "free lists are wrong"
        assert not any(page in self._cache for page in self._free), "a cached page is listed as not cached"
        assert all(page in self._cache for page in self._free_cached), "a forgotten page is listed as cached"
