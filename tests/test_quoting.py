"""What messages quote is short, whatever it is, and shows enough to recognise it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.quoting import explanation, quoted, shorten

VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.builds(str.__mul__, st.text(), st.integers(0, 10**4)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_any_value_is_quoted_in_a_few_words(value: Any) -> None:
    # A character that cannot be printed takes up to ten.
    assert len(quoted(value)) <= 1100


@pytest.mark.parametrize("value", ["llama", "", None, 3, 0.5, True, -(2**63), ["LlamaForCausalLM"], {"type": "yarn"}])
def test_short_values_are_written_out(value: Any) -> None:
    assert quoted(value) == repr(value)


def test_of_a_long_text_the_head_and_the_length_are_told() -> None:
    assert quoted("ab" * 2000) == f"'{'ab' * 50}'... (4,000 characters)"


def test_integers_that_python_refuses_to_write_are_told_by_their_size() -> None:
    assert quoted(10**5000) == "<16610 bits>"
    assert "<16610 bits>" in quoted([10**5000])


def test_of_a_long_collection_a_part_is_told() -> None:
    assert quoted(list(range(1000))) == "[0, 1, 2, 3, 4, 5, ...]"


def test_what_others_say_keeps_both_ends() -> None:
    assert shorten("a" * 60 + "b" * 60) == "a" * 48 + "..." + "b" * 48
    assert explanation(ValueError("a" * 10**6 + "z")).endswith("az")
