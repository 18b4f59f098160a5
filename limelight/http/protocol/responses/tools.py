"""`tools` and `tool_choice`.

A custom tool takes free text instead of JSON. The model is offered a function with one string, so that every format of
tool calls can carry it; its text is taken out of the arguments again on the way back.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.http.conversation import FunctionTool, NamedTool, ToolChoice
from limelight.quoting import quoted, shorten

FUNCTION = "function"
CUSTOM = "custom"
TOOL_CHOICES = ("none", "auto", "required")
CUSTOM_ARGUMENT = "input"

_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_ARGUMENT: {"type": "string"}},
    "required": [CUSTOM_ARGUMENT],
    "additionalProperties": False,
}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is offered; `format` belongs to custom tools, `parameters` and `strict` to functions."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None


TOOL_FIELDS = frozenset(Tool.__struct_fields__) | {"allowed_callers", "defer_loading", "output_schema", "async"}
"""Every name that a function or a custom tool may have; those beside the struct's say nothing to the model."""


class ToolRef(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tools of `allowed_tools`."""

    type: str
    name: str | None = None


class ToolChoiceObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`tool_choice` as an object: a named tool, or those that are allowed."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ToolRef] | None = None


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """What the model may call.

    Attributes:
        custom: names of the custom tools.
    """

    functions: tuple[FunctionTool, ...] = ()
    choice: ToolChoice = "auto"
    custom: frozenset[str] = frozenset()


def offered_tools(tools: Sequence[Tool], choice: str | ToolChoiceObject | None) -> OfferedTools:
    """The tools that the model is offered, and whether it must call one.

    Raises:
        InvalidRequest: a tool has no name or the name of another, or the choice names none of them.
        UnsupportedField: a hosted tool, or a custom tool with a grammar.
    """
    functions = {}
    for index, tool in enumerate(tools):
        function = _function(tool, f"tools[{index}]")
        if function.name in functions:
            raise InvalidRequest(
                f"tools[{index}].name is {quoted(function.name)}, the name of an earlier tool; give each its own name",
                param=f"tools[{index}].name",
            )
        functions[function.name] = function
    custom = frozenset(tool.name for tool in tools if tool.type == CUSTOM and tool.name)
    allowed, chosen = _choice(choice, {tool.name or "": tool.type for tool in tools})
    offered = tuple(function for name, function in functions.items() if allowed is None or name in allowed)
    return OfferedTools(functions=offered, choice=chosen, custom=custom)


def custom_arguments(text: str) -> str:
    """The arguments of the function that stands for a custom tool."""
    return msgspec.json.encode({CUSTOM_ARGUMENT: text}).decode()


def custom_input(arguments: str) -> str:
    """The text for a custom tool in what the model gave as arguments; all of it, if it is not what was asked for."""
    try:
        return str(msgspec.json.decode(arguments)[CUSTOM_ARGUMENT])
    except (msgspec.DecodeError, TypeError, KeyError):
        return arguments


def _function(tool: Tool, where: str) -> FunctionTool:
    if tool.type not in (FUNCTION, CUSTOM):
        raise UnsupportedField(
            f"{where}.type is {quoted(tool.type)}; this server has no hosted tools, offer a function instead",
            param=f"{where}.type",
        )
    if not tool.name:
        raise InvalidRequest(f"{where}.name is missing; give the tool a name", param=f"{where}.name")
    if tool.type == FUNCTION:
        return FunctionTool(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=bool(tool.strict)
        )
    if tool.format is not None and tool.format.get("type") != "text":
        raise UnsupportedField(
            f"{where}.format is not supported unless its type is text; offer a function whose parameters say what the "
            "input looks like",
            param=f"{where}.format",
        )
    return FunctionTool(name=tool.name, description=tool.description, parameters=_CUSTOM_PARAMETERS)


def _choice(choice: str | ToolChoiceObject | None, types: dict[str, str]) -> tuple[frozenset[str] | None, ToolChoice]:
    """The names that are allowed (None: all), and what the model must do."""
    if choice is None:
        return None, "auto"
    if isinstance(choice, str):
        if choice not in TOOL_CHOICES:
            raise InvalidRequest(
                f"tool_choice is {quoted(choice)}, must be one of {', '.join(TOOL_CHOICES)} or an object",
                param="tool_choice",
            )
        if choice == "required" and not types:
            raise InvalidRequest("tool_choice is required, but there are no tools", param="tool_choice")
        return None, choice  # type: ignore[return-value]
    if choice.type in (FUNCTION, CUSTOM):
        _check_offered(choice.type, choice.name, types, "tool_choice")
        return None, NamedTool(choice.name or "")
    if choice.type == "allowed_tools":
        allowed = choice.tools or []
        for index, tool in enumerate(allowed):
            _check_offered(tool.type, tool.name, types, f"tool_choice.tools[{index}]")
        return frozenset(tool.name or "" for tool in allowed), choice.mode or "auto"
    raise UnsupportedField(
        f"tool_choice.type is {quoted(choice.type)}; this server has no hosted tools, use function, custom or "
        "allowed_tools",
        param="tool_choice.type",
    )


def _check_offered(kind: str, name: str | None, types: dict[str, str], where: str) -> None:
    if name is None or types.get(name) != kind:
        raise InvalidRequest(
            f"{where} names {quoted(name)}, which is no tool of type {shorten(kind, 60)} in tools",
            param=where,
        )
