import hypothesis.strategies as st
import pytest
from hypothesis import given

from limelight.actors.scheduling.prefix_cache import PageChain, PrefixCache

histories = st.tuples(st.sampled_from([None, "", "a", "absent", "\ud800"]), st.lists(st.integers(0, 2), max_size=9))


def digests(salt, tokens, page_size=2):
    chain = PageChain(salt)
    return [chain.digest(index, tokens, page_size) for index in range(len(tokens) // page_size)]


@given(histories, histories)
def test_two_pages_have_one_digest_exactly_if_salt_and_whole_history_are_equal(first, second):
    for i, one in enumerate(digests(*first)):
        for j, other in enumerate(digests(*second)):
            same = first[0] == second[0] and first[1][: 2 * i + 2] == second[1][: 2 * j + 2]
            assert (one == other) == same


def test_large_token_ids_do_not_run_into_each_other():
    assert digests(None, [1, 256]) != digests(None, [256, 1])
    assert digests(None, [0x0101, 0]) != digests(None, [1, 1])
    assert len(digests(None, [2**62, 2**62 + 1])) == 1


def test_digests_do_not_depend_on_how_much_was_known_when_they_were_asked_for():
    chain, tokens = PageChain("s"), [1, 2, 3]
    first = chain.digest(0, tokens, 2)
    tokens += [4, 5]
    assert [first, chain.digest(1, tokens, 2)] == digests("s", tokens)


def test_a_page_with_unknown_tokens_has_no_digest():
    with pytest.raises(AssertionError, match="all its tokens are known"):
        PageChain(None).digest(1, [1, 2, 3], 2)


def test_the_first_page_with_a_history_stays():
    cache = PrefixCache()
    cache.insert(b"x", 1)
    cache.insert(b"x", 2)
    assert cache.find(b"x") == 1
    assert 2 not in cache
    cache.forget(2)
    cache.forget(1)
    assert cache.find(b"x") is None
    assert len(cache) == 0


def test_a_page_is_not_given_a_second_history():
    cache = PrefixCache()
    cache.insert(b"x", 1)
    with pytest.raises(AssertionError, match="page 1 is rewritten"):
        cache.insert(b"y", 1)


def test_only_equal_adapters_and_equal_salts_share_pages() -> None:
    roots = [
        PageChain(salt, adapter).digest(0, [1, 2], 2)
        for salt in (None, "", "a")
        for adapter in (None, 0, 1, 256, 2**40)
    ]
    assert len(set(roots)) == len(roots)
    assert PageChain("a", 256).digest(0, [1, 2], 2) == PageChain("a", 256).digest(0, [1, 2], 2)
