"""DeepSeek V3, R1 (name and fenced JSON after the word `function`) and V3.1 (name and JSON beside one mark).

The marks are special tokens, written with fullwidth bars and the low line of SentencePiece.
"""

from limelight.parsing.tool_calls.json_call import MAX_NAME_CHARACTERS, json_object
from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Source, Steps, text_before

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"  # noqa: RUF001
CALLS_END = "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL_BEGIN = "<｜tool▁call▁begin｜>"  # noqa: RUF001
CALL_END = "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
FENCE = "```"
LANGUAGE = "json"
KIND = "function"


def deepseek(source: Source, answer: Answer) -> Steps[None]:
    """Text with any number of calls."""
    while mark := (yield from text_before(source, answer, (CALLS_BEGIN, CALL_BEGIN))):
        source.take(len(mark))
        yield from source.skip_any(WHITE_SPACE)
        if mark == CALLS_BEGIN and not (yield from source.skip(CALL_BEGIN)):
            found = False
        else:
            found = yield from _call(source, answer)
        if not found:
            answer.text(source.since_checkpoint())
            continue
        yield from source.skip_any(WHITE_SPACE)
        yield from source.skip_last(CALL_END)
        yield from source.skip_any(WHITE_SPACE)
        yield from source.skip_last(CALLS_END)
        yield from source.skip_any(WHITE_SPACE)


def _call(source: Source, answer: Answer) -> Steps[bool]:
    """What stands after the begin of a call, up to its end mark; returns whether it is a call."""
    name = yield from source.take_until((SEPARATOR,), MAX_NAME_CHARACTERS)
    if name is None:
        return False
    source.take(len(SEPARATOR))
    if name.strip(WHITE_SPACE) == KIND and (yield from source.peek()) != "{":
        name = yield from source.take_until(("\n", FENCE, "{"), MAX_NAME_CHARACTERS)
    yield from source.skip_any(WHITE_SPACE)
    fenced = yield from source.skip(FENCE)
    if fenced:
        yield from source.skip(LANGUAGE)
        yield from source.skip_any(WHITE_SPACE)
    name = (name or "").strip(WHITE_SPACE)
    if not name or (yield from source.peek()) != "{":
        return False
    answer.call(name)
    source.forget()
    yield from json_object(source, answer.arguments, CALL_END)
    if fenced:
        yield from source.skip_any(WHITE_SPACE)
        yield from source.skip_last(FENCE)
    return True
