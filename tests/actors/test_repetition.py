"""The detector finds exactly the repetitions that the definition names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.actors.repetition import RepetitionDetector
from limelight.errors import InvalidRequest
from limelight.generation import MAX_REPETITION_PATTERN_TOKENS, RepetitionDetection


def ends_in_repetition(token_ids, wanted):
    """The definition: some pattern of an allowed size stands `min_count` times at the end."""
    return any(
        len(token_ids) >= size * wanted.min_count
        and token_ids[-size * wanted.min_count :] == token_ids[-size:] * wanted.min_count
        for size in range(max(wanted.min_pattern_size, 1), wanted.max_pattern_size + 1)
    )


@st.composite
def settings(draw):
    longest = draw(st.integers(1, 6))
    return RepetitionDetection(
        max_pattern_size=longest,
        min_pattern_size=draw(st.integers(0, longest)),
        min_count=draw(st.integers(2, 4)),
    )


@given(settings(), st.lists(st.integers(0, 2), max_size=40))
def test_it_says_so_at_every_token_at_which_the_definition_holds(wanted, token_ids):
    detector = RepetitionDetector(wanted)
    for end, token_id in enumerate(token_ids, start=1):
        assert detector.feed(token_id) == ends_in_repetition(token_ids[:end], wanted)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"max_pattern_size": -1}, "max_pattern_size"),
        ({"max_pattern_size": MAX_REPETITION_PATTERN_TOKENS + 1, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 2, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 2}, "min_count"),
    ],
)
def test_impossible_settings_are_refused_by_name(values, name):
    with pytest.raises(InvalidRequest) as refusal:
        RepetitionDetection(**values)
    assert refusal.value.param == f"repetition_detection.{name}"
