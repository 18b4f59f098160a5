"""`<tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>`: Qwen3-Coder, Qwen3-Next.

Values are written without quotes; what they are is told by the tool's schema. Strings are given as they come, other
values once they are complete. A value that is not of its type reaches the client as a string.
"""

from collections.abc import Callable, Mapping
from typing import Any

from limelight.parsing.tool_calls.json_call import MAX_NAME_CHARACTERS
from limelight.parsing.tool_calls.source import WHITE_SPACE, Answer, Format, Source, Steps, copy_until, text_before
from limelight.parsing.tool_calls.words import PYTHON_CONSTANTS, json_value, quoted

BEGIN = "<tool_call>"
END = "</tool_call>"
FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
MAX_SCHEMA_DEPTH = 8

Schemas = Mapping[str, Mapping[str, Any]]
"""Name of a function -> JSON schema of its arguments."""


def qwen3_coder(schemas: Schemas) -> Format:
    """The format, for these tools."""

    def parse(source: Source, answer: Answer) -> Steps[None]:
        while mark := (yield from text_before(source, answer, (BEGIN, FUNCTION))):
            if mark == BEGIN:
                source.take(len(BEGIN))
                yield from source.skip_any(WHITE_SPACE)
            name = (yield from _attribute(source)) if (yield from source.skip(FUNCTION)) else None
            if name is None:
                answer.text(source.since_checkpoint())
                continue
            answer.call(name)
            source.forget()
            yield from _parameters(source, answer, schemas.get(name) or {})
            yield from source.skip_any(WHITE_SPACE)
            yield from source.skip_last(END)
            yield from source.skip_any(WHITE_SPACE)

    return parse


def _attribute(source: Source) -> Steps[str | None]:
    """What stands up to the `>`, which is taken."""
    written = yield from source.take_until((">",), MAX_NAME_CHARACTERS)
    if written is None or not (name := written.strip(WHITE_SPACE + "\"'")):
        return None
    source.take(1)
    return name


def _parameters(source: Source, answer: Answer, schema: Mapping[str, Any]) -> Steps[None]:
    """All parameters and the end of the function, as the text of one JSON object; left open where the text ends."""
    answer.arguments("{")
    separator = ""
    yield from source.skip_any(WHITE_SPACE)
    while (yield from source.skip(PARAMETER)):
        key = yield from _attribute(source)
        if key is None:
            return
        answer.arguments(f"{separator}{quoted(key)}: ")
        separator = ", "
        yield from source.skip("\n")
        if not (yield from _value(source, answer, _types(schema, key))):
            return
        yield from source.skip_any(WHITE_SPACE)
    if (yield from source.skip_last(FUNCTION_END)) or (yield from source.peek()):
        answer.arguments("}")


def _value(source: Source, answer: Answer, types: frozenset[str] | None) -> Steps[bool]:
    """One value up to its end mark, which is taken; returns whether there was one."""
    if types is None or types == {"string"}:
        answer.arguments('"')
        closed = yield from _written(source, lambda piece: answer.arguments(quoted(piece)[1:-1]))
        if closed:
            answer.arguments('"')
        return closed
    written: list[str] = []
    closed = yield from _written(source, written.append)
    text = "".join(written)
    answer.arguments(_typed(text, types) if closed else text)
    return closed


def _written(source: Source, give: Callable[[str], object]) -> Steps[bool]:
    """Give a value as it comes. The line feed before the end mark is not its own."""
    mark = yield from copy_until(source, give, (PARAMETER_END,), _without_line_feed)
    if mark is None:
        return False
    source.take(source.rest.index(mark) + len(mark))
    return True


def _without_line_feed(text: str) -> str:
    return text.removesuffix("\n")


def _types(schema: Mapping[str, Any], key: str) -> frozenset[str] | None:
    """The JSON types that the schema allows for a parameter; None if it does not say."""
    properties = schema.get("properties")
    found = _types_of(properties.get(key), 0) if isinstance(properties, Mapping) else frozenset()
    return found or None


def _types_of(schema: object, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return frozenset()
    named = schema.get("type")
    found = frozenset(name for name in [named, *_list(named)] if isinstance(name, str))
    for alternative in [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]:
        found |= _types_of(alternative, depth + 1)
    values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return found or frozenset(_TYPE_NAMES[type(value)] for value in values if type(value) in _TYPE_NAMES)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_TYPE_NAMES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


def _typed(text: str, types: frozenset[str]) -> str:
    """The JSON of a value of one of these types, else of a string."""
    written = text.strip(WHITE_SPACE)
    try:
        name = _TYPE_NAMES[type(json_value(written))]
    except ValueError:
        return quoted(text)
    if name in types or (name == "integer" and "number" in types):
        return PYTHON_CONSTANTS.get(written, written)
    return quoted(text)
