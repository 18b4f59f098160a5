"""`{"name": ..., "parameters": {...}}` as the whole answer, several separated by `;`: Llama 3.1 to 3.3.

An optional `<|python_tag|>` before them may follow text; without it, only an answer that begins with a brace is calls.
"""

from limelight.parsing.tool_calls.json_call import json_call
from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Source, Steps, text_before

TAG = "<|python_tag|>"


def llama3_json(source: Source, answer: Answer) -> Steps[None]:
    """Calls from the beginning, or after the tag."""
    source.checkpoint()
    yield from source.skip_any(WHITE_SPACE)
    yield from _calls(source, answer)
    while (yield from text_before(source, answer, (TAG,))):
        source.take(len(TAG))
        yield from source.skip_any(WHITE_SPACE)
        yield from _calls(source, answer)


def _calls(source: Source, answer: Answer) -> Steps[None]:
    """As many calls as follow; what has been taken since the checkpoint belongs to the first of them."""
    while (yield from source.peek()) == "{":
        if not (yield from json_call(source, answer, None, may_lack_arguments=False)):
            break
        source.checkpoint()
        yield from source.skip_any(WHITE_SPACE + ";")
        if not (yield from source.peek()):
            source.forget()
            return
    answer.text(source.since_checkpoint())
