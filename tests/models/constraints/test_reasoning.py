"""An answer in a given form begins behind the reasoning, whose end is forced when the budget is spent."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import InvalidRequest
from limelight.generation import ReasoningFormat
from limelight.parsing.reasoning import Opening, ReasoningSplitter
from limelight.structured_outputs import StructuredOutputsParams
from tests.models.constraints.wordy_vocabulary import CLOSE, END, TOKENS, allowed, begin, encode, takes, text_of, walk

WRITTEN = ReasoningFormat("<think>", "</think>")
"""Marks of several tokens each."""
SPECIAL = ReasoningFormat("<call>", "</call>")
"""Marks that are special tokens."""
ANSWER = StructuredOutputsParams(regex="(true|false)x*y")


def both():
    return pytest.mark.parametrize("marks", [WRITTEN, SPECIAL], ids=["written", "special"])


@both()
def test_the_form_begins_behind_a_reasoning_that_the_prompt_opened(marks):
    constraint = begin(marks=marks, begins=Opening.REASONING, structured_outputs=ANSWER)
    assert END not in allowed(constraint)
    assert takes(constraint, "any the thing, < </th and more" + marks.end + "truey")
    assert allowed(constraint) == [END]


@both()
def test_a_reasoning_may_come_first_or_not_at_all(marks):
    assert takes(begin(marks=marks, structured_outputs=ANSWER), "falsey")
    assert takes(begin(marks=marks, structured_outputs=ANSWER), marks.start + "\nhm" + marks.end + "falsey")
    assert not takes(begin(marks=marks, structured_outputs=ANSWER), "hm")


@both()
def test_there_is_no_second_reasoning(marks):
    assert not takes(begin(marks=marks, begins=Opening.TEXT, structured_outputs=ANSWER), marks.start)
    once = begin(marks=marks, structured_outputs=ANSWER)
    assert takes(once, marks.start + marks.end)
    assert not takes(once, marks.start)


def test_a_form_that_begins_as_the_mark_does():
    form = StructuredOutputsParams(regex="<thing>|<think")
    assert takes(begin(marks=WRITTEN, structured_outputs=form), "<thing>")
    undecided = begin(marks=WRITTEN, structured_outputs=form)
    assert takes(undecided, "<think")
    assert END in allowed(undecided)
    assert takes(undecided, ">hm</think><thing>")
    assert allowed(undecided) == [END]


def test_a_token_never_holds_the_end_of_the_reasoning_and_a_piece_of_the_answer():
    constraint = begin(marks=WRITTEN, begins=Opening.REASONING, structured_outputs=ANSWER)
    constraint.advance(encode("hm</think"))
    may_follow = allowed(constraint)
    assert TOKENS.index(b">{") not in may_follow
    assert TOKENS.index(b">\n") in may_follow
    assert TOKENS.index(b">") in may_follow


def test_a_few_line_feeds_may_stand_between():
    assert takes(begin(marks=SPECIAL, begins=Opening.REASONING, structured_outputs=ANSWER), "hm</call>\n\ntruey")
    assert not takes(begin(marks=SPECIAL, begins=Opening.REASONING, structured_outputs=ANSWER), "hm</call>" + "\n" * 9)


@both()
@given(st.integers(0, 12), st.integers(0, 1000), st.sampled_from(list(Opening)), st.booleans())
def test_the_end_of_a_reasoning_is_forced_when_its_budget_is_spent(marks, budget, seed, begins, has_form):
    form = {"structured_outputs": ANSWER} if has_form else {}
    constraint = begin(marks=marks, begins=begins, thinking_token_budget=budget, skip_special_tokens=False, **form)
    likely = {*encode("<think>"), *encode("abc the"), *encode(marks.start), *encode("true")}
    drawn, ended = walk(constraint, random.Random(seed), max_tokens=80, prefers=likely)
    text = text_of(drawn)
    splitter = ReasoningSplitter(marks, begins)
    pieces = [splitter.feed(text), splitter.finish()]
    reasoning = "".join(piece.reasoning for piece in pieces)
    if splitter.found_reasoning and (ended or len(drawn) == 80):
        assert marks.end in text
        assert len(encode(reasoning)) <= max(0, budget) + len(encode(marks.end))
    if has_form and ended:
        assert "".join(piece.text for piece in pieces).rstrip("xy") in ("true", "false")


def test_the_end_is_written_from_where_it_has_begun():
    constraint = begin(marks=WRITTEN, begins=Opening.REASONING, thinking_token_budget=2)
    constraint.advance(encode("a</"))
    assert text_of(allowed(constraint)) == "think"
    constraint.advance(encode("think"))
    assert text_of(allowed(constraint)) == ">"
    constraint.advance(encode(">"))
    assert len(allowed(constraint)) > 100


def test_a_special_mark_is_forced_as_that_token():
    constraint = begin(marks=SPECIAL, begins=Opening.REASONING, thinking_token_budget=0)
    assert allowed(constraint) == [CLOSE]


def test_minus_one_is_no_budget():
    constraint = begin(marks=SPECIAL, begins=Opening.REASONING, thinking_token_budget=-1, bad_words=["zz"])
    constraint.advance(encode("a" * 500))
    assert len(allowed(constraint)) > 100


def test_a_budget_without_marks_is_refused():
    with pytest.raises(InvalidRequest) as refused:
        begin(thinking_token_budget=5)
    assert refused.value.param == "thinking_token_budget"
