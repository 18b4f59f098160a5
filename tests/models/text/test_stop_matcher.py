"""Stop strings: the answer depends on the whole text alone, and text is held back no longer than it must be."""

from collections.abc import Sequence
from time import thread_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from limelight.models.text.stop_matcher import StopMatcher


def run(stops: tuple[str, ...], pieces: Sequence[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop)
    text = "".join(matcher.feed(piece) for piece in pieces) + matcher.flush()
    return text, matcher.matched


def oracle(stops: tuple[str, ...], text: str, *, include_stop: bool = False) -> tuple[str, str | None]:
    """On the whole text: the leftmost start wins, then the shortest."""
    matches = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    if not matches:
        return text, None
    start, length, stop = min(matches)
    return text[: start + length if include_stop else start], stop


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    ends = sorted(min(position, len(text)) for position in cuts)
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


LETTERS = st.sampled_from("abc")
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=6), max_size=5).map(tuple)
TEXT = st.text(LETTERS, max_size=30)
CUTS = st.lists(st.integers(0, 30), max_size=30)


@settings(max_examples=500)
@given(STOPS, TEXT, CUTS, st.booleans())
@example(("bc", "abcd"), "xabcd", [1, 2, 3, 4], False)
@example(("bc", "abcd"), "xabce", [1, 2, 3, 4], False)
@example(("ab", "aba"), "cabab", [2, 3], True)
def test_any_split_gives_the_answer_of_the_whole_text(
    stops: tuple[str, ...], text: str, cuts: list[int], include_stop: bool
) -> None:
    expected = oracle(stops, text, include_stop=include_stop)

    assert run(stops, cut(text, cuts), include_stop=include_stop) == expected


@settings(max_examples=300)
@given(STOPS, TEXT, CUTS)
def test_only_the_longest_tail_that_begins_a_stop_string_is_held(
    stops: tuple[str, ...], text: str, cuts: list[int]
) -> None:
    matcher = StopMatcher(stops, include_stop=False)
    seen = sent = ""
    for piece in cut(text, cuts):
        seen += piece
        sent += matcher.feed(piece)
        if matcher.matched is not None:
            break
        longest = max(
            (length for stop in stops for length in range(1, len(stop)) if seen.endswith(stop[:length])), default=0
        )
        assert matcher.num_held == longest
        assert sent == seen[: len(seen) - longest]


@given(STOPS, TEXT)
def test_a_match_is_known_as_soon_as_no_earlier_one_is_possible(stops: tuple[str, ...], text: str) -> None:
    matcher = StopMatcher(stops, include_stop=False)
    for end, character in enumerate(text, start=1):
        matcher.feed(character)
        seen = text[:end]
        start = min((seen.index(stop) for stop in stops if stop in seen), default=None)
        earlier_possible = start is not None and any(
            seen[begin:] == stop[: end - begin] for begin in range(start) for stop in stops if len(stop) > end - begin
        )
        assert (matcher.matched is not None) == (start is not None and not earlier_possible)
        if matcher.matched is not None:
            break


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        pytest.param(("bc", "abcd"), ["xabcd"], ("x", "abcd"), id="leftmost start wins"),
        pytest.param(("bc", "abcd"), ["xab", "c", "e"], ("xa", "bc"), id="waiting match wins when the earlier fails"),
        pytest.param(("bc", "abcd"), ["xab", "c"], ("xa", "bc"), id="waiting match wins at the end"),
        pytest.param(("ab", "abc"), ["xabc"], ("x", "ab"), id="shortest of one start"),
        pytest.param(("O P Q",), ["N O", " P", " Q R"], ("N ", "O P Q"), id="across pieces"),
        pytest.param(("\n",), ["a", "\n\n", "b"], ("a", "\n"), id="twice in one piece"),
        pytest.param(("TRE\nAAAA",), ["UNO DUE TR", "E"], ("UNO DUE TRE", None), id="held tail is flushed"),
        pytest.param(("\n", "Alice:"), [" Ali", "ce", " and"], (" Alice and", None), id="held text is sent once"),
        pytest.param(("👩‍🚀",), ["a👩", "\u200d", "🚀b"], ("a", "👩‍🚀"), id="beyond the basic plane"),
        pytest.param((), ["a", "b"], ("ab", None), id="no stop strings"),
        pytest.param(("aab",), ["aa", "aab"], ("aa", "aab"), id="overlapping restart"),
    ],
)
def test_known_cases(stops: tuple[str, ...], pieces: list[str], expected: tuple[str, str | None]) -> None:
    assert run(stops, pieces) == expected


def test_the_stop_string_may_be_kept() -> None:
    assert run(("END",), ["one E", "ND two"], include_stop=True) == ("one END", "END")


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(("b",), include_stop=False)

    assert matcher.feed("abc") == "a"
    assert matcher.feed("more") == ""
    assert matcher.flush() == ""
    assert matcher.num_held == 0


def test_text_that_begins_no_stop_string_is_released_at_once() -> None:
    matcher = StopMatcher(("###", "Observation:"), include_stop=False)

    assert [matcher.feed(piece) for piece in ["The ", "answer", " is #", "1."]] == ["The ", "answer", " is ", "#1."]


def test_cost_grows_linearly_with_long_stop_strings_and_outputs() -> None:
    stops = tuple("a" * 1000 + end for end in "bcde")
    seconds = {}
    for num_pieces in (500, 4000):
        seconds[num_pieces] = min(_seconds_of_the_processor(stops, num_pieces) for _ in range(3))

    assert seconds[4000] < 8 * 4 * seconds[500]


def _seconds_of_the_processor(stops: tuple[str, ...], num_pieces: int) -> float:
    """What matching took, without what other programs of the machine did meanwhile."""
    matcher = StopMatcher(stops, include_stop=False)
    started = thread_time()
    text = "".join(matcher.feed("aaaa") for _ in range(num_pieces)) + matcher.flush()
    seconds = thread_time() - started
    assert text == "aaaa" * num_pieces
    return seconds
