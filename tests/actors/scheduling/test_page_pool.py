"""The pool and the cache as a state machine against a plain model: lists in the promised order of reuse."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from limelight.actors.scheduling.page_pool import PagePool
from limelight.actors.scheduling.prefix_cache import PrefixCache


class PoolStates(RuleBasedStateMachine):
    @initialize(num_pages=st.integers(1, 8))
    def start(self, num_pages):
        self.cache = PrefixCache()
        self.pool = PagePool(num_pages, self.cache)
        self.tables: list[list[int]] = []
        self.free = list(range(num_pages))
        self.free_cached: list[int] = []
        self.cached: dict[bytes, int] = {}
        self.written: dict[int, int] = dict.fromkeys(range(num_pages), 0)
        self.num_histories = 0
        self.step = 0

    def holders(self, page):
        return sum(page in table for table in self.tables)

    @precondition(lambda self: self.free or self.free_cached)
    @rule(data=st.data())
    def allocate(self, data):
        self.step += 1
        expected = (self.free or self.free_cached).pop(0)
        self.cached = {digest: page for digest, page in self.cached.items() if page != expected}
        assert self.pool.allocate(self.step) == expected
        self.written[expected] = self.step
        index = data.draw(st.integers(0, len(self.tables)))
        if index == len(self.tables):
            self.tables.append([])
        self.tables[index].append(expected)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def insert(self, data):
        held = sorted({page for table in self.tables for page in table if page not in self.cached.values()})
        if held:
            page = data.draw(st.sampled_from(held))
            self.num_histories += 1
            digest = str(self.num_histories).encode()
            self.cache.insert(digest, page)
            self.cached[digest] = page

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def share(self, data):
        digest = data.draw(st.sampled_from(sorted(self.cached)))
        page = self.cache.find(digest)
        assert page == self.cached[digest]
        self.pool.retain(page)
        if page in self.free_cached:
            self.free_cached.remove(page)
        self.tables.append([page])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        for page in reversed(table):
            if not self.holders(page):
                (self.free_cached if page in self.cached.values() else self.free).append(page)

    @rule(data=st.data())
    def withdraw(self, data):
        page = data.draw(st.integers(0, self.pool.num_pages - 1))
        self.pool.withdraw(page)
        self.cached = {digest: other for digest, other in self.cached.items() if other != page}
        if page in self.free_cached:
            self.free_cached.remove(page)
            self.free.append(page)

    @invariant()
    def agrees_with_the_model(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check(self.tables)
        assert self.pool.num_free == len(self.free) + len(self.free_cached)
        assert sorted(self.cache) == sorted(self.cached.values())
        for page, step in self.written.items():
            assert self.pool.allocated_at(page) == step
            assert self.pool.is_free(page) == (not self.holders(page))


TestPoolStates = PoolStates.TestCase
TestPoolStates.settings = settings(max_examples=80, stateful_step_count=40)


def test_the_tail_of_a_released_table_is_reused_before_its_head():
    cache = PrefixCache()
    pool = PagePool(3, cache)
    table = [pool.allocate(0) for _ in range(3)]
    for page in table:
        cache.insert(bytes([page]), page)
    pool.release(table)
    assert [pool.allocate(1) for _ in range(3)] == table[::-1]


def test_misuse_is_caught():
    pool = PagePool(1, PrefixCache())
    page = pool.allocate(0)
    with pytest.raises(AssertionError, match="num_free"):
        pool.allocate(0)
    with pytest.raises(AssertionError, match="not in the prefix cache"):
        pool.retain(page)
    pool.release([page])
    with pytest.raises(AssertionError, match="more often than it is held"):
        pool.release([page])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check([[page]])
