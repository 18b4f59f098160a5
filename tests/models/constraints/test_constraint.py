"""Forms, lists, words and the least number of tokens together."""

import random

import pytest

from limelight.errors import InvalidRequest
from limelight.generation import SamplingParams
from limelight.models.constraints.compiling import needs_constraints
from limelight.models.constraints.constraint import failure
from limelight.structured_outputs import StructuredOutputsParams
from tests.models.constraints.wordy_vocabulary import END, allowed, begin, encode, takes, text_of, walk

LETTERS = StructuredOutputsParams(regex="[a-c]+")
A, B, C, X = (ord(letter) for letter in "abcx")


def test_only_allowed_tokens_and_the_end_are_drawn():
    assert allowed(begin(allowed_token_ids=[A, B])) == [A, B, END]
    assert allowed(begin(allowed_token_ids=[A, B], stop_token_ids=[X])) == [A, B, X, END]
    assert allowed(begin(allowed_token_ids=[A, B], ignore_eos=True)) == [A, B]


def test_allowed_tokens_and_a_form_hold_together():
    constraint = begin(allowed_token_ids=[A, X], structured_outputs=LETTERS)
    assert allowed(constraint) == [A]
    constraint.advance([A])
    assert allowed(constraint) == [A, END]


def test_words_and_a_form_hold_together():
    for seed in range(20):
        constraint = begin(structured_outputs=LETTERS, bad_words=["abc", "cc"], min_tokens=10)
        drawn, _ = walk(constraint, random.Random(seed), max_tokens=30)
        assert "abc" not in text_of(drawn)
        assert "cc" not in text_of(drawn)


def test_no_end_before_the_least_number_of_tokens():
    constraint = begin(structured_outputs=LETTERS, min_tokens=3)
    for _ in range(3):
        assert END not in allowed(constraint)
        constraint.advance([A])
    assert END in allowed(constraint)


def test_the_end_comes_early_where_nothing_else_is_possible():
    constraint = begin(structured_outputs=StructuredOutputsParams(choice=["ab"]), min_tokens=9)
    constraint.advance(encode("ab"))
    assert allowed(constraint) == [END]


def test_least_number_of_tokens_without_a_form():
    constraint = begin(bad_words=["zz"], min_tokens=1, stop_token_ids=[X])
    assert not {END, X} & set(allowed(constraint))
    constraint.advance([A])
    assert {END, X} <= set(allowed(constraint))


def test_stop_tokens_of_the_request_end_a_form_where_it_is_whole():
    constraint = begin(structured_outputs=StructuredOutputsParams(regex="a[bx]"), stop_token_ids=[X])
    assert takes(constraint, "a")
    assert set(allowed(constraint)) == {B}
    constraint.advance([B])
    assert set(allowed(constraint)) == {X, END}


def test_what_leaves_no_token_fails_with_the_reason():
    with pytest.raises(InvalidRequest, match="no token is left"):
        begin(structured_outputs=StructuredOutputsParams(regex="x"), bad_words=["x"]).mask()
    with pytest.raises(InvalidRequest, match="no token is left"):
        begin(structured_outputs=StructuredOutputsParams(regex="x"), allowed_token_ids=[A]).mask()


def test_a_form_that_grows_too_complex_fails_with_the_reason():
    grammar = "start: Y a{1000}\na: b{1000}\nb: c{1000}\nc: X\nX: /x/\nY: /[xy]{3}/"
    constraint = begin(structured_outputs=StructuredOutputsParams(grammar=grammar))
    with pytest.raises(InvalidRequest, match="too complex") as failed:
        for _ in range(5):
            constraint.advance([X])
            constraint.mask()
    assert failed.value.param == "structured_outputs"


@pytest.mark.parametrize(
    ("sampling", "needs"),
    [
        ({}, False),
        ({"bad_words": []}, False),
        ({"thinking_token_budget": -1}, False),
        ({"thinking_token_budget": 0}, True),
        ({"bad_words": ["a"]}, True),
        ({"allowed_token_ids": [1]}, True),
        ({"structured_outputs": LETTERS}, True),
    ],
)
def test_who_needs_masks(sampling, needs):
    assert needs_constraints(SamplingParams(**sampling)) is needs


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"bad_words": "word"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"bad_words": ["a" * 1025]}, "bad_words"),
        ({"structured_outputs": LETTERS, "ignore_eos": True}, "ignore_eos"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ],
)
def test_values_that_are_refused(sampling, field):
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**sampling)
    assert refused.value.param == field


def test_errors_of_our_own_become_failures_of_the_request():
    error = InvalidRequest("no")
    assert failure(error) is error
    assert "ZeroDivisionError" in failure(ZeroDivisionError()).message
