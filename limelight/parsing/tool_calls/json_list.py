"""`[{"name": ..., "parameters": {...}}, ...]` as the whole answer: what a model without a format of its own is held to.

One call need not stand in a list.
"""

from limelight.parsing.tool_calls.json_call import json_call
from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Source, Steps, text_to_the_end


def json_list(source: Source, answer: Answer) -> Steps[None]:
    """Calls from the beginning of the answer."""
    source.checkpoint()
    yield from source.skip_any(WHITE_SPACE)
    if (yield from calls_in_list(source, answer, None)):
        yield from source.skip_any(WHITE_SPACE)
    else:
        answer.text(source.since_checkpoint())
    yield from text_to_the_end(source, answer)


def calls_in_list(source: Source, answer: Answer, end: str | None) -> Steps[bool]:
    """Read a list of calls, or one call, that comes next; returns whether it is one, with at least one call in it.

    Args:
        end: as for `json_call`.
    """
    num_calls = 0
    if not (yield from source.skip("[")):
        return (yield from source.peek()) == "{" and (
            yield from json_call(source, answer, end, may_lack_arguments=False)
        )
    while True:
        yield from source.skip_any(WHITE_SPACE + ",")
        if (yield from source.peek()) != "{" or not (
            yield from json_call(source, answer, end, may_lack_arguments=num_calls > 0)
        ):
            break
        num_calls += 1
        source.checkpoint()
    if num_calls == 0:
        return False
    if not (yield from source.skip("]")):
        answer.text(source.since_checkpoint())
    source.forget()
    return True
