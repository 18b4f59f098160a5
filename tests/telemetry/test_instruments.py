"""Counters and histograms: what they hold, and that clients cannot fill them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.telemetry.buckets import one_two_five
from limelight.telemetry.instruments import MAX_SERIES, OTHER, Counter, Exemplar, Histogram, HistogramFamily


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0.001, 99), min_size=1, unique=True).map(sorted))
def test_a_value_counts_in_the_first_bucket_that_is_not_below_it(values, bounds):
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == pytest.approx(sum(values))
    for place, bound in enumerate(bounds):
        assert sum(histogram.counts[: place + 1]) == sum(value <= bound for value in values)


def test_equal_values_are_counted_at_once():
    histogram = Histogram((1, 2))
    histogram.observe(1.5, 3)
    assert (histogram.counts, histogram.total) == ([0, 3, 0], 4.5)


def test_a_bucket_keeps_its_last_example_and_an_untraced_value_does_not_take_it_away():
    histogram = Histogram((1,))
    histogram.observe_traced(0.5, "aa", 1.0)
    histogram.observe_traced(0.7, "bb", 2.0)
    histogram.observe_traced(0.9, None, 3.0)
    histogram.observe_traced(9.0, None, 3.0)
    assert histogram.exemplars == [Exemplar(0.7, "bb", 2.0), None]
    assert histogram.counts == [3, 1]


def test_a_counter_counts_what_is_beyond_its_bound_together():
    counter = Counter(2)
    for number in range(MAX_SERIES + 50):
        counter.add(1, str(number), "x")
    counter.add(1, "0", "x")
    assert len(counter.values) == MAX_SERIES + 1
    assert counter.values[(OTHER, OTHER)] == 50
    assert counter.values[("0", "x")] == 2
    assert Counter().values == {(): 0}


def test_a_family_is_bounded_too_and_can_be_merged():
    family = HistogramFamily((1, 10), 1)
    for number in range(MAX_SERIES + 50):
        family.of(str(number)).observe(5)
    assert len(family.histograms) == MAX_SERIES + 1
    assert family.of("new") is family.of("newer") is family.histograms[(OTHER,)]
    assert family.merged().counts == [0, MAX_SERIES + 50, 0]
    assert family.merged(lambda labels: labels == ("3",)).counts == [0, 1, 0]


def test_one_two_five():
    assert one_two_five(20) == (1, 2, 5, 10, 20)
    assert one_two_five(99) == (1, 2, 5, 10, 20, 50)
    assert one_two_five(100)[-1] == 100
