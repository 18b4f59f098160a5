"""Tools on the wire of a chat: what may be called, what must be, and the API's first form of both."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.http.conversation import FunctionTool, NamedTool, ToolChoice
from limelight.http.protocol.json_schemas import check_schema
from limelight.quoting import shorten

NAME = re.compile(r"[\w.:/-]{1,128}")
WORDS: tuple[ToolChoice, ...] = ("none", "auto", "required")


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may be called. `parameters`: JSON schema of its arguments; without it, it takes none."""

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `tools`; functions are the only type."""

    type: str = "function"
    function: FunctionDefinition | None = None


class FunctionName(msgspec.Struct, frozen=True):
    """The function that must be called."""

    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`tool_choice` that names a function."""

    type: str = "function"
    function: FunctionName | None = None


def function_tools(tools: Sequence[ToolDefinition] | None) -> tuple[FunctionTool, ...]:
    """What `tools` offers.

    Raises:
        InvalidRequest: the list is empty, or has two functions of one name, or a name or schema is malformed.
        UnsupportedField: a tool is no function.
    """
    if tools is None:
        return ()
    for index, tool in enumerate(tools):
        if tool.type != "function":
            raise UnsupportedField(
                f"tools[{index}].type is {shorten(tool.type, 60)!r}; this server knows tools of type 'function' only",
                param=f"tools[{index}].type",
            )
    functions = [_present(tool.function, f"tools[{index}].function") for index, tool in enumerate(tools)]
    return _functions(functions, "tools", [f"tools[{index}].function" for index in range(len(tools))])


def legacy_functions(functions: Sequence[FunctionDefinition] | None) -> tuple[FunctionTool, ...]:
    """What `functions` offers.

    Raises:
        InvalidRequest: as for `function_tools`.
    """
    if functions is None:
        return ()
    return _functions(functions, "functions", [f"functions[{index}]" for index in range(len(functions))])


def tool_choice(choice: str | NamedToolChoice | None) -> ToolChoice:
    """What `tool_choice` says; without it the model chooses.

    Raises:
        InvalidRequest: it is no choice that there is.
    """
    if choice is None:
        return "auto"
    if isinstance(choice, NamedToolChoice):
        if choice.type != "function" or choice.function is None:
            raise InvalidRequest(
                'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
                param="tool_choice",
            )
        return NamedTool(choice.function.name)
    for word in WORDS:
        if choice == word:
            return word
    raise InvalidRequest(
        f'tool_choice is {shorten(choice, 60)!r}, must be "none", "auto", "required" or an object that names a '
        "function",
        param="tool_choice",
    )


def legacy_choice(choice: str | FunctionName | None) -> ToolChoice:
    """What `function_call` says.

    Raises:
        InvalidRequest: it is no choice that there is.
    """
    match choice:
        case None | "auto":
            return "auto"
        case "none":
            return "none"
        case FunctionName(name):
            return NamedTool(name)
    raise InvalidRequest('function_call must be "none", "auto" or {"name": ...}', param="function_call")


def _functions(functions: Sequence[FunctionDefinition], param: str, places: Sequence[str]) -> tuple[FunctionTool, ...]:
    if not functions:
        raise InvalidRequest(f"{param} is an empty list; send at least one, or leave it out", param=param)
    seen: set[str] = set()
    for function, where in zip(functions, places, strict=True):
        if not NAME.fullmatch(function.name):
            raise InvalidRequest(
                f"{where}.name is {shorten(function.name, 80)!r}, must be 1 to 128 letters, digits or characters of "
                "_ - . : /",
                param=f"{where}.name",
            )
        if function.name in seen:
            raise InvalidRequest(
                f"{where}.name is {function.name!r}, as that of another function; names must differ",
                param=f"{where}.name",
            )
        seen.add(function.name)
        if function.parameters is not None:
            _check_parameters(function.parameters, f"{where}.parameters")
    return tuple(
        FunctionTool(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            strict=bool(function.strict),
        )
        for function in functions
    )


def _check_parameters(schema: Any, where: str) -> None:
    """Arguments are an object, so their schema is that of one."""
    check_schema(schema, where)
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidRequest(f'{where} must be the JSON schema of an object ("type": "object")', param=where)


def _present(function: FunctionDefinition | None, where: str) -> FunctionDefinition:
    if function is None:
        raise InvalidRequest(f"{where} is missing", param=where)
    return function
