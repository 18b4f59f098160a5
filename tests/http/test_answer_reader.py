"""The parts of an answer and their log-probabilities, joined, do not depend on how the choice was cut into deltas."""

from hypothesis import given
from hypothesis import strategies as st

from limelight.generation import Delta, FinishReason, TokenLogprob
from limelight.http.answer_reader import AnswerReader
from limelight.parsing.parts import CallArguments, CallStart, ReasoningPart, TextPart
from limelight.parsing.tool_calls.formats import new_parser

PIECES = ["Hi ", "<tool_call>", '{"name": "f", "arguments": {', '"a": 1}}', "</tool_call>", "\n", "<", "é"]


def entry(character):
    return TokenLogprob(ord(character), character, character.encode(), -1.0)


def read(deltas, *, has_tools, **options):
    """Reasoning, text, calls, entries and the reason, joined."""
    reader = AnswerReader(new_parser("hermes", {}) if has_tools else None, **options)
    found = [part for delta in deltas for part in reader.feed(delta)]
    parts = [part.part for part in found]
    return (
        "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
        "".join(part.text for part in parts if isinstance(part, TextPart)),
        [(part.index, part.name) for part in parts if isinstance(part, CallStart)],
        [(part.index, part.text) for part in merged(parts)],
        [entry for part in found for entry in part.logprobs or ()],
        reader.finish_reason(deltas[-1]),
    )


def merged(parts):
    joined = {}
    for part in parts:
        if isinstance(part, CallArguments):
            joined[part.index] = joined.get(part.index, "") + part.text
    return [CallArguments(index, text) for index, text in joined.items()]


@given(
    st.text("rs\n", max_size=4),
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.lists(st.integers(1, 5), max_size=12),
    st.booleans(),
    st.booleans(),
    st.sampled_from([{}, {"max_calls": 1}, {"include_reasoning": False}, {"calls_only": True, "forced": True}]),
    st.sampled_from(list(FinishReason)),
)
def test_cuts_change_nothing(reasoning, text, sizes, has_tools, with_logprobs, options, reason):
    def delta(thought, said, finish=None):
        entries = tuple(map(entry, thought + said)) if with_logprobs else None
        return Delta(reasoning=thought, text=said, logprobs=entries, finish_reason=finish)

    whole = read([delta(reasoning, text, reason)], has_tools=has_tools, **options)
    deltas, said = [delta(character, "") for character in reasoning], text
    for size in sizes:
        deltas.append(delta("", said[:size]))
        said = said[size:]
    cut = read([*deltas, delta("", said), delta("", "", reason)], has_tools=has_tools, **options)
    assert cut == whole
    assert whole[4] == (list(map(entry, reasoning + text)) if with_logprobs else [])


def test_entries_wait_for_their_text():
    reader = AnswerReader(new_parser("hermes", {}))
    assert reader.feed(Delta(text="<tool", logprobs=(entry("<"),))) == []
    (part,) = reader.feed(Delta(text="s>", logprobs=(entry("s"),)))
    assert (part.part, [entry.token for entry in part.logprobs]) == (TextPart("<tools>"), ["<", "s"])
