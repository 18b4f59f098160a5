"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes 2 Pro, Qwen 2.5 and 3, and many others."""

from limelight.parsing.tool_calls.json_call import json_call
from limelight.parsing.tool_calls.json_list import calls_in_list
from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Source, Steps, text_before

BEGIN = "<tool_call>"
END = "</tool_call>"
SUPERFLUOUS = WHITE_SPACE + "}]"
"""Between a call and its end mark; small models close more brackets than they opened."""


def hermes(source: Source, answer: Answer) -> Steps[None]:
    """Text with any number of calls."""
    while (yield from text_before(source, answer, (BEGIN,))):
        source.take(len(BEGIN))
        yield from source.skip_any(WHITE_SPACE)
        if (yield from _calls(source, answer)):
            yield from source.skip_any(SUPERFLUOUS)
            yield from source.skip_last(END)
            yield from source.skip_any(WHITE_SPACE)
        else:
            answer.text(source.since_checkpoint())


def _calls(source: Source, answer: Answer) -> Steps[bool]:
    """One call, or a list of them, as Falcon writes them."""
    if (yield from source.peek()) == "{":
        return (yield from json_call(source, answer, END, may_lack_arguments=True))
    return (yield from calls_in_list(source, answer, END))
