"""`[f(a=1, b="x"), g()]` as the whole answer: Llama 3.2 and 4 and others that were taught to write Python.

Arguments become JSON while they are written: strings character by character, numbers and names once they are complete.
A bare word that is no constant of Python or JSON becomes a string. Sets, calls and operators are not read: there the
call breaks off, and what follows is text.
"""

from limelight.parsing.tool_calls.json_call import MAX_NAME_CHARACTERS
from limelight.parsing.tool_calls.python_literals import literal
from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Source, Steps, text_to_the_end
from limelight.parsing.tool_calls.words import quoted

BEGIN = "<|python_start|>"
END = "<|python_end|>"


def pythonic(source: Source, answer: Answer) -> Steps[None]:
    """Calls from the beginning of the answer."""
    source.checkpoint()
    yield from source.skip_any(WHITE_SPACE)
    yield from source.skip(BEGIN)
    yield from source.skip_any(WHITE_SPACE)
    if (yield from source.skip("[")) and (yield from _calls(source, answer)):
        yield from source.skip_any(WHITE_SPACE)
        yield from source.skip_last(END)
        yield from source.skip_any(WHITE_SPACE)
    else:
        answer.text(source.since_checkpoint())
    yield from text_to_the_end(source, answer)


def _calls(source: Source, answer: Answer) -> Steps[bool]:
    """Calls up to the bracket that closes them; returns whether there is one."""
    num_calls = 0
    while True:
        yield from source.skip_any(WHITE_SPACE + ",")
        if num_calls and (yield from source.skip("]")):
            source.forget()
            return True
        name = yield from _call_begin(source)
        if name is None:
            if num_calls:
                answer.text(source.since_checkpoint())
            return num_calls > 0
        answer.call(name)
        source.forget()
        num_calls += 1
        if not (yield from _arguments(source, answer)):
            return True
        source.checkpoint()


def _call_begin(source: Source) -> Steps[str | None]:
    """The name, if what follows is `name()` or `name(word=`, which is taken up to the parenthesis."""
    name = yield from source.take_while(_in_name, MAX_NAME_CHARACTERS)
    if not name or name[0].isdigit() or not (yield from source.skip("(")):
        return None
    yield from source.skip_any(WHITE_SPACE)
    first = yield from source.peek()
    return name if first == ")" or first.isalpha() or first == "_" else None


def _arguments(source: Source, answer: Answer) -> Steps[bool]:
    """`a=1, b="x")` as one JSON object; returns whether it is complete."""
    answer.arguments("{")
    separator = ""
    while True:
        yield from source.skip_any(WHITE_SPACE + ",")
        if (yield from source.skip(")")):
            answer.arguments("}")
            return True
        word = yield from source.take_while(_in_name, MAX_NAME_CHARACTERS)
        yield from source.skip_any(WHITE_SPACE)
        if not word or not (yield from source.skip("=")):
            return False
        yield from source.skip_any(WHITE_SPACE)
        answer.arguments(f"{separator}{quoted(word)}: ")
        separator = ", "
        if not (yield from literal(source, answer.arguments)):
            return False


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "_."
