"""Products timed by themselves, with small matrices, and up to how many rows they are multiplied as packed."""

import pytest

from limelight.bench.products import (
    SWITCHED_FORMATS,
    SWITCHED_ROWS,
    best_switch_over,
    product_rate,
    switch_over,
    switch_over_lines,
)
from limelight.kernels.cpu import build
from limelight.kernels.cpu.features import runnable_variants
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.loading import load_library

needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")
SIZE = 256


@pytest.fixture(scope="module")
def library() -> Library:
    found = load_library()
    assert found is not None
    return found


def test_the_best_switch_over_loses_least_over_all_row_counts() -> None:
    same = [1.0] * len(SWITCHED_ROWS)
    assert best_switch_over([0.9] * 5 + [1.1] * 7, same) == SWITCHED_ROWS[4]
    assert best_switch_over([1.1] * 12, same) == 0
    assert best_switch_over([0.9] * 12, same) == SWITCHED_ROWS[-1]
    assert best_switch_over([0.5, 0.5, 1.01, 0.5] + [2.0] * 8, same) == SWITCHED_ROWS[3], "one odd time decides nothing"


@needs_compiler
def test_both_ways_are_timed_for_every_format_that_has_two(library: Library) -> None:
    found = [switch_over(library, name, SIZE, repeats=1) for name in SWITCHED_FORMATS]
    if library.variant == "portable":
        assert found == [None] * len(found)
        return
    each = [one for one in found if one is not None]
    assert [one["format"] for one in each] == list(SWITCHED_FORMATS)
    for one in each:
        assert one["measured"] in (0, *SWITCHED_ROWS)
        assert one["fixed"] > 0
        assert min(*one["as_packed_us"].values(), *one["unpacked_us"].values()) > 0
        assert [line for line in switch_over_lines(each) if line.split()[0] == one["format"]]


@needs_compiler
@pytest.mark.skipif("portable" not in runnable_variants(), reason="there are other variants only")
def test_the_portable_kernels_multiply_in_one_way() -> None:
    portable = load_library("portable")
    assert portable is not None
    assert switch_over(portable, "Q8_0", SIZE, repeats=1) is None
    assert switch_over_lines([]) == []


@needs_compiler
def test_a_product_has_a_rate(library: Library) -> None:
    assert product_rate(library, 1, "Q4_1", seconds=0.01) > 1e6
