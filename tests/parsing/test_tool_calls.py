"""Every format at every cut: what its models write, what they break off, and what is no call at all."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.parsing.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from limelight.parsing.reasoning import MAX_HELD_CHARACTERS
from limelight.parsing.tool_calls.formats import TOOL_FORMATS, new_parser
from limelight.parsing.tool_calls.source import PIECE_CHARACTERS
from tests.parsing.written import ANSWERS, CASES, SCHEMAS

_SNIPPETS = [
    '{"name": "',
    '"f"',
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    "\\",
    ":",
    ",",
    "(",
    ")",
    "f(a=",
    "=",
    " ",
    "\n",
    "<",
    ">",
]
_SNIPPETS += [
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "<function=now>",
    "```json",
    "function",
    '"arguments": {',
]


def parse(name: str, pieces: list[str]) -> list[Part]:
    """The parts of a text that comes in `pieces`, neighbours of one kind joined."""
    parser = new_parser(name, SCHEMAS)
    return joined([part for piece in pieces for part in parser.feed(piece)] + parser.finish())


def joined(parts: list[Part]) -> list[Part]:
    """Equal for equal answers, however they were cut."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        match last, part:
            case TextPart(before), TextPart(text):
                merged[-1] = TextPart(before + text)
            case ReasoningPart(before), ReasoningPart(text):
                merged[-1] = ReasoningPart(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                merged[-1] = CallArguments(index, before + text)
            case _:
                merged.append(part)
    return merged


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def calls_of(parts: list[Part]) -> list[tuple[str, str]]:
    names = [part.name for part in parts if isinstance(part, CallStart)]
    return [
        (name, "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == index))
        for index, name in enumerate(names)
    ]


def test_every_format_has_answers() -> None:
    assert ANSWERS.keys() == TOOL_FORMATS.keys()


@pytest.mark.parametrize(("name", "written", "text", "calls"), CASES)
def test_what_models_write(name: str, written: str, text: str, calls: list[tuple[str, object]]) -> None:
    parts = parse(name, [written])
    assert text_of(parts) == text
    assert [(called, json.loads(arguments)) for called, arguments in calls_of(parts)] == calls


@pytest.mark.parametrize(("name", "written"), [case[:2] for case in CASES])
def test_a_cut_anywhere_changes_nothing(name: str, written: str) -> None:
    whole = parse(name, [written])
    assert parse(name, list(written)) == whole
    for place in range(len(written) + 1):
        assert parse(name, [written[:place], written[place:]]) == whole


@pytest.mark.parametrize(("name", "written"), [case[:2] for case in CASES])
def test_an_answer_that_breaks_off_is_given_as_far_as_it_came(name: str, written: str) -> None:
    whole_calls = calls_of(parse(name, [written]))
    for length in range(len(written)):
        cut = written[:length]
        parts = parse(name, [cut])
        assert parts == parse(name, list(cut))
        calls = calls_of(parts)
        assert [called for called, _ in calls] == [called for called, _ in whole_calls[: len(calls)]]
        if not calls and not any(isinstance(part, ReasoningPart) for part in parts) and name != "openai":
            assert text_of(parts) == cut, "what is no call yet is text, to the last character"


@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_garbage_is_never_an_error_and_cuts_never_matter(name: str, data: st.DataObject) -> None:
    tokens = [*TOOL_FORMATS[name].marks, *_SNIPPETS, *(answer[0] for answer in ANSWERS[name])]
    snippets = st.one_of(st.sampled_from(tokens), st.text(max_size=3))
    written = "".join(data.draw(st.lists(snippets, max_size=12)))
    whole = parse(name, [written])
    assert parse(name, list(written)) == whole
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    places = sorted(chance.randrange(len(written) + 1) for _ in range(4))
    assert parse(name, [written[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]) == whole
    if not calls_of(whole) and name != "openai":
        assert text_of(whole) == written


def test_text_is_held_back_only_while_it_may_be_a_mark() -> None:
    parser = new_parser("hermes", SCHEMAS)
    assert parser.feed("a <") == [TextPart("a")]
    assert parser.feed("b") == [TextPart(" <b")]
    assert parser.feed(" <tool_call>") == []
    assert parser.feed('{"name": "now", "arguments": {"a"') == [CallStart(0, "now"), CallArguments(0, '{"a"')]
    assert parser.feed(': "x') == [CallArguments(0, ': "x')]


def test_a_long_run_of_white_space_is_not_held_back_for_ever() -> None:
    parser = new_parser("hermes", SCHEMAS)
    assert parser.feed("a" + " " * MAX_HELD_CHARACTERS) == [TextPart("a")]
    assert parser.feed(" " * 10) == [TextPart(" " * 10)]
    written = "a" + " " * 1000 + '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    whole = parse("hermes", [written])
    assert text_of(whole) == "a" + " " * (1000 - MAX_HELD_CHARACTERS)
    assert parse("hermes", list(written)) == whole


@pytest.mark.parametrize(("name", "written"), [case[:2] for case in CASES])
def test_an_answer_longer_than_a_piece_is_the_same_at_every_cut(name: str, written: str) -> None:
    long = written * (2 * PIECE_CHARACTERS // len(written) + 2)
    assert parse(name, [long]) == parse(name, [long[at : at + 50] for at in range(0, len(long), 50)])


def test_python_arguments_and_xml_strings_stream_as_they_are_written() -> None:
    pythonic = new_parser("pythonic", SCHEMAS)
    assert joined(pythonic.feed("[f(a='xy")) == [CallStart(0, "f"), CallArguments(0, '{"a": "xy')]
    assert pythonic.feed("z") == [CallArguments(0, "z")]
    xml = new_parser("qwen3_coder", SCHEMAS)
    xml.feed("<function=get_weather><parameter=city>x")
    assert xml.feed('y"') == [CallArguments(0, 'y\\"')]
    assert xml.feed("\n") == [], "it may be the line feed before the end mark"


def test_a_long_answer_that_is_no_call_is_not_held_back() -> None:
    parser = new_parser("llama3_json", SCHEMAS)
    assert text_of(parser.feed('{"title": "a very')) == '{"title": "a very', "no call has this member"


def test_later_reasoning_of_harmony_is_reasoning() -> None:
    written = "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>A"
    assert parse("openai", [written]) == [ReasoningPart("Hm."), TextPart("A")]
