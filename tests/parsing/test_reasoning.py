"""Reasoning and text apart, the same at every cut, with nothing held back that could not be a mark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.generation import ReasoningFormat
from limelight.parsing.reasoning import MAX_HELD_CHARACTERS, Opening, ReasoningSplitter, opening

THINK = ReasoningFormat("<think>", "</think>")
UNKNOWN, REASONING, TEXT = Opening.UNKNOWN, Opening.REASONING, Opening.TEXT

CASES = [
    (UNKNOWN, "<think>\nI see.\n</think>\n\nHello.\n", "I see.", "Hello.\n"),
    (UNKNOWN, "\n<think>a</think>b", "a", "b"),
    (UNKNOWN, "<think></think>", "", ""),
    (UNKNOWN, "<think>\n\n</think>\n\nno need", "", "no need"),
    (UNKNOWN, "Hello <think>no</think>", "", "Hello <think>no</think>"),
    (UNKNOWN, "  Hello", "", "  Hello"),
    (UNKNOWN, "<thin", "", "<thin"),
    (UNKNOWN, "<think>a</thi", "a</thi", ""),
    (UNKNOWN, "<think>a\n\nb < c </think>d<think>e</think>", "a\n\nb < c ", "d<think>e</think>"),
    (UNKNOWN, "<think>forever", "forever", ""),
    (REASONING, "\nI see.</think>Hello.", "I see.", "Hello."),
    (REASONING, "<think>a</think>b", "<think>a", "b"),
    (REASONING, "forever\n", "forever\n", ""),
    (TEXT, "\n<think>a</think>b", "", "\n<think>a</think>b"),
]


def split(begins: Opening, pieces: list[str]) -> tuple[str, str, int | None, bool]:
    splitter = ReasoningSplitter(THINK, begins)
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    assert splitter.num_held == 0
    reasoning, text = ("".join(part[side] for part in parts) for side in (0, 1))
    return reasoning, text, splitter.text_begins, splitter.found_reasoning


@pytest.mark.parametrize(("begins", "written", "reasoning", "text"), CASES)
def test_reasoning_and_text_apart_at_every_cut(begins: Opening, written: str, reasoning: str, text: str) -> None:
    whole = split(begins, [written])
    assert whole[:2] == (reasoning, text)
    assert split(begins, list(written)) == whole
    for place in range(len(written) + 1):
        assert split(begins, [written[:place], written[place:]]) == whole


@given(st.sampled_from(list(Opening)), st.lists(st.sampled_from(["<think>", "</think>", "<", "</thi", "\n", " ", "a"])))
def test_no_text_is_lost_and_no_cut_matters(begins: Opening, pieces: list[str]) -> None:
    written = "".join(pieces)
    whole = split(begins, [written])
    assert split(begins, pieces) == whole
    assert split(begins, list(written)) == whole
    reasoning, text, text_begins, found = whole
    if not found:
        assert (reasoning, text) == ("", written)
    elif text_begins is None:
        assert written.endswith(reasoning)
        assert text == ""
    else:
        assert written[:text_begins].endswith("</think>")
        assert text == written[text_begins:].lstrip("\n")
        assert reasoning in written[:text_begins]


def test_only_what_may_be_a_mark_is_held_back() -> None:
    splitter = ReasoningSplitter(THINK, UNKNOWN)
    assert splitter.feed("<think>Let a <") == ("Let a ", "")
    assert splitter.num_held == 1
    assert splitter.feed("b") == ("<b", "")
    assert splitter.feed("\n") == ("", "")
    assert splitter.feed("c") == ("\nc", "")
    assert splitter.feed("</think>") == ("", "")
    assert not splitter.is_through, "line feeds may follow"
    assert splitter.feed("Hi <") == ("", "Hi <")
    assert splitter.is_through


MORE = MAX_HELD_CHARACTERS + 44
LONG_RUNS = [
    (UNKNOWN, " " * MORE + "<think>a</think>b", "", " " * MORE + "<think>a</think>b"),
    (UNKNOWN, " " * MAX_HELD_CHARACTERS + "<think>a</think>b", "a", "b"),
    (UNKNOWN, "<think>a" + "\n" * MORE + "</think>b", "a" + "\n" * 44, "b"),
    (REASONING, "a" + "\n" * MORE + "b" + "\n" * MORE, "a" + "\n" * MORE + "b" + "\n" * MORE, ""),
]


@pytest.mark.parametrize(("begins", "written", "reasoning", "text"), LONG_RUNS)
def test_a_long_run_of_white_space_is_not_held_back_for_ever(
    begins: Opening, written: str, reasoning: str, text: str
) -> None:
    whole = split(begins, [written])
    assert whole[:2] == (reasoning, text)
    for size in (1, 7, 255, 256, 257):
        assert split(begins, [written[start : start + size] for start in range(0, len(written), size)]) == whole
    splitter = ReasoningSplitter(THINK, begins)
    for character in written:
        splitter.feed(character)
        assert splitter.num_held <= MAX_HELD_CHARACTERS + len(THINK.end)


def test_plain_text_is_not_held_back() -> None:
    splitter = ReasoningSplitter(THINK, UNKNOWN)
    assert splitter.feed("H") == ("", "H")
    assert splitter.is_through


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("<|assistant|><think>\n", REASONING),
        ("<|assistant|><think>", REASONING),
        ("<|assistant|><think>\n\n</think>\n\n", TEXT),
        ("what is <think>? <|assistant|>", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_the_prompt_tells_where_the_output_begins(prompt: str, begins: Opening) -> None:
    assert opening(prompt, THINK) is begins
