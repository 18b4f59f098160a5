"""`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, later `[TOOL_CALLS]name[ARGS]{...}` for each call."""

import re

from limelight.parsing.tool_calls.json_call import MAX_NAME_CHARACTERS, json_object
from limelight.parsing.tool_calls.json_list import calls_in_list
from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Source, Steps, text_before

BEGIN = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"
NAME = re.compile(r"[\w.:/-]+")


def mistral(source: Source, answer: Answer) -> Steps[None]:
    """Text with any number of calls."""
    while (yield from text_before(source, answer, (BEGIN,))):
        source.take(len(BEGIN))
        yield from source.skip_any(WHITE_SPACE)
        if (yield from source.peek()) in ("[", "{"):
            found = yield from calls_in_list(source, answer, BEGIN)
        else:
            found = yield from _named_call(source, answer)
        if found:
            yield from source.skip_any(WHITE_SPACE)
        else:
            answer.text(source.since_checkpoint())


def _named_call(source: Source, answer: Answer) -> Steps[bool]:
    """`name[ARGS]{...}`, perhaps with `[CALL_ID]...` before the arguments; the id is left out, clients get another."""
    name = yield from source.take_until((CALL_ID, ARGUMENTS, "{"), MAX_NAME_CHARACTERS)
    if name is None or not NAME.fullmatch(name.strip(WHITE_SPACE)):
        return False
    if (yield from source.skip(CALL_ID)) and (
        yield from source.take_until((ARGUMENTS, "{"), MAX_NAME_CHARACTERS)
    ) is None:
        return False
    yield from source.skip(ARGUMENTS)
    yield from source.skip_any(WHITE_SPACE)
    if (yield from source.peek()) != "{":
        return False
    answer.call(name.strip(WHITE_SPACE))
    source.forget()
    yield from json_object(source, answer.arguments, BEGIN)
    return True
