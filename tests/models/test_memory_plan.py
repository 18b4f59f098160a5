import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import OutOfMemory
from limelight.models.memory_plan import MemoryPlan, plan_memory
from limelight.models.wording import as_size

MIB = 2**20
GIB = 2**30
ASK = {
    "weights_bytes": 500 * MIB,
    "page_bytes": MIB,
    "page_size": 16,
    "context_length": 8192,
    "max_model_len": None,
    "kv_cache_bytes": None,
    "free_bytes": 2500 * MIB,
    "max_num_seqs": 64,
}


def plan(**changes: int | None) -> MemoryPlan:
    return plan_memory(**(ASK | changes))


def test_by_default_the_pool_takes_a_share_of_what_the_weights_leave() -> None:
    made = plan()
    assert made.num_pages == 800  # 40 % of 2000 MiB
    assert made.kv_bytes == 800 * MIB
    assert made.num_tokens == 12_800
    assert (made.max_model_len, made.shortened_from) == (8192, None)


def test_the_pool_is_no_larger_than_the_seats_can_use() -> None:
    assert plan(max_num_seqs=1).num_pages == 512
    assert plan(max_num_seqs=2, max_model_len=100).num_pages == 2 * 7


def test_the_pool_is_capped_unless_told_otherwise() -> None:
    assert plan(free_bytes=100 * GIB).num_pages == 4096
    assert plan(free_bytes=100 * GIB, kv_limit_bytes=None, max_num_seqs=1000).num_pages > 40_000
    assert plan(free_bytes=100 * GIB, kv_cache_bytes=10 * GIB).num_pages == 10_240


def test_where_free_memory_is_unknown_the_pool_is_moderate() -> None:
    assert plan(free_bytes=None).num_pages == 1024
    assert plan(free_bytes=None, kv_cache_bytes=9 * GIB).num_pages == 9216


def test_a_context_that_was_not_asked_for_is_shortened_to_the_pool() -> None:
    made = plan(kv_cache_bytes=100 * MIB)
    assert (made.num_pages, made.max_model_len, made.shortened_from) == (100, 1600, 8192)


def test_a_context_that_was_asked_for_enlarges_the_default_pool_but_is_never_shortened() -> None:
    made = plan(max_model_len=20_000)
    assert (made.num_pages, made.max_model_len) == (1250, 20_000)
    with pytest.raises(OutOfMemory, match=r"max_model_len is 200,000.*set max_model_len to at most 28,800$"):
        plan(max_model_len=200_000)
    assert plan(max_model_len=28_800).max_model_len == 28_800


def test_a_told_pool_too_small_for_the_told_context_names_both_ways_out() -> None:
    with pytest.raises(OutOfMemory, match=r"at most 1,600, or kv_cache_bytes to at least 131,072,000$"):
        plan(max_model_len=2000, kv_cache_bytes=100 * MIB)
    assert plan(max_model_len=2000, kv_cache_bytes=131_072_000).max_model_len == 2000
    assert plan(max_model_len=1600, kv_cache_bytes=100 * MIB).max_model_len == 1600


def test_a_told_pool_larger_than_free_memory_is_refused_with_the_largest_that_fits() -> None:
    with pytest.raises(OutOfMemory, match=r"only 2,621,440,000 bytes of memory are free; .* at most 2,097,152,000$"):
        plan(kv_cache_bytes=2001 * MIB)
    assert plan(kv_cache_bytes=2_097_152_000).num_pages == 2000


def test_a_pool_of_less_than_a_page_is_refused() -> None:
    with pytest.raises(OutOfMemory, match=r"kv_cache_bytes is 5, .* at least 1,048,576"):
        plan(kv_cache_bytes=5)


def test_weights_that_do_not_fit_are_refused_with_what_is_lacking() -> None:
    with pytest.raises(OutOfMemory, match=r"weights need 500\.0 MiB .* only 400\.0 MiB .* free 101\.0 MiB more"):
        plan(free_bytes=400 * MIB)
    assert plan(free_bytes=501 * MIB).num_pages == 1


def test_concurrency_counts_whole_pages_and_seats() -> None:
    made = plan(kv_cache_bytes=100 * MIB, max_num_seqs=8)
    assert made.concurrency(16) == 8
    assert made.concurrency(17 * 16) == 5
    assert made.concurrency(17 * 16 + 1) == 5
    assert made.concurrency(1600) == 1


def test_the_table_is_aligned_and_names_everything() -> None:
    lines = plan(kv_cache_bytes=400 * MIB).table().splitlines()
    assert lines == [
        "free memory  2.44 GiB",
        "weights      500.0 MiB",
        "KV cache     400.0 MiB: 400 pages, 6,400 tokens",
        "context      6,400 tokens, shortened from 8,192 (raise kv_cache_bytes for more)",
        "at once      6 x 1,024 tokens, 1 x 4,096 tokens, 1 x 6,400 tokens",
    ]
    assert plan(free_bytes=None, max_model_len=1024).table().splitlines()[0] == "weights   500.0 MiB"
    assert plan(max_model_len=1024).table().splitlines()[-1] == "at once      12 x 1,024 tokens"


def test_sizes_are_told_in_fitting_units() -> None:
    assert [as_size(size) for size in (512, 3 * MIB, 5 * GIB)] == ["0.5 KiB", "3.0 MiB", "5.00 GiB"]


def followed(ask: dict[str, int | None], message: str) -> dict[str, int | None] | None:
    """The request changed as the error advises; None if only more memory or a smaller model would help."""
    for field in ("max_model_len", "kv_cache_bytes"):
        advice = re.search(rf"{field} to at (?:least|most) ([\d,]+)", message)
        if advice:
            return ask | {field: int(advice[1].replace(",", ""))}
    assert "smaller model or dtype" in message
    return None


LARGE = st.integers(1, 2**45)


@given(
    weights_bytes=LARGE,
    page_bytes=st.integers(1, 2**30),
    page_size=st.sampled_from([8, 16, 128]),
    context_length=st.integers(2, 2**20),
    max_model_len=st.none() | st.integers(2, 2**21),
    kv_cache_bytes=st.none() | LARGE,
    free_bytes=st.none() | st.integers(0, 2**46),
    max_num_seqs=st.integers(1, 512),
)
def test_a_plan_fits_and_keeps_what_was_told_or_says_what_would_fit(**ask: int | None) -> None:
    try:
        made = plan_memory(**ask)
    except OutOfMemory as error:
        changed = followed(ask, error.message)
        if changed is None:
            return
        ask = changed
        try:
            made = plan_memory(**ask)
        except OutOfMemory as second:  # two faults take two changes
            changed = followed(ask, second.message)
            if changed is None or changed == ask:
                raise
            ask = changed
            made = plan_memory(**ask)
    assert made.num_pages >= 1
    assert made.max_model_len <= made.num_tokens
    if ask["free_bytes"] is not None:
        assert made.weights_bytes + made.kv_bytes <= ask["free_bytes"]
    if ask["max_model_len"] is not None:
        assert made.max_model_len == ask["max_model_len"]
    if ask["kv_cache_bytes"] is not None:
        assert made.num_pages == ask["kv_cache_bytes"] // made.page_bytes
