"""OpenAI-shaped messages -> what chat templates expect. Pure; copies, never changes what it was given.

Rules, in this order:
- A field that is null counts as absent; absent content is "" (so null, absent and "" render the same).
- `tool_calls[].function.arguments` is a JSON string in the API and an object for templates; one that reads as its JSON
  text where a template prints it or adds it to a text, as those do that were written for strings.
- Reasoning is passed on under the names that templates read, `reasoning_content` and `thinking`.
- Content parts: only text. Templates that loop over content get the parts, others the texts joined by a line feed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from limelight.errors import InvalidRequest
from limelight.json_size import has_more_values
from limelight.quoting import quoted, shorten

PART_SEPARATOR = "\n"
MAX_ARGUMENT_VALUES = 20_000
"""Of the arguments of one call that become an object; reading them takes a few milliseconds."""
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class Arguments(dict[str, Any]):
    """The arguments of a tool call: an object, and a text where a template needs one.

    Args:
        text: the JSON that the client sent.
    """

    __slots__ = ("_text",)

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> str:
        return other + self._text if isinstance(other, str) else NotImplemented


def template_messages(messages: Sequence[Mapping[str, Any]], *, keep_parts: bool) -> list[dict[str, Any]]:
    """The messages in plain lists and dictionaries.

    Args:
        keep_parts: the template handles lists of content parts.

    Raises:
        InvalidRequest: a message holds what no text model can read; `param` names the place.
    """
    return [_message(message, f"messages[{index}]", keep_parts=keep_parts) for index, message in enumerate(messages)]


def with_textual_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same messages with all arguments of tool calls as JSON texts, for templates that take nothing else."""
    return [
        {**message, "tool_calls": [_textual(call) for call in calls]}
        if isinstance(calls := message.get("tool_calls"), list)
        else dict(message)
        for message in messages
    ]


def plain(value: object, param: str) -> Any:
    """A copy of a JSON-like value made of Python's own types, so that a template meets no methods but theirs.

    Raises:
        InvalidRequest: it holds something that is not JSON.
    """
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case Mapping():
            return {str(key): plain(item, shorten(f"{param}.{key}")) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, shorten(f"{param}[{index}]")) for index, item in enumerate(value)]
    raise InvalidRequest(f"{param} is a {type(value).__name__}; chat templates take JSON values only", param=param)


def _message(message: Mapping[str, Any], param: str, *, keep_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{param} is a {type(message).__name__}; it must be an object with a role", param=param)
    copied = {key: value for key, value in plain(message, param).items() if value is not None}
    content = copied.get("content", "")
    if isinstance(content, list):
        content = _content_parts(content, f"{param}.content", keep_parts=keep_parts)
    copied["content"] = content
    if isinstance(calls := copied.get("tool_calls"), list):
        copied["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = next((copied[name] for name in REASONING_FIELDS if name in copied), None)
    if reasoning is not None:
        copied = {"thinking": reasoning, **copied, "reasoning_content": reasoning}
    return copied


def _content_parts(parts: list[Any], param: str, *, keep_parts: bool) -> str | list[dict[str, str]]:
    texts = [_part_text(part, f"{param}[{index}]") for index, part in enumerate(parts)]
    if keep_parts:
        return [{"type": "text", "text": text} for text in texts]
    return PART_SEPARATOR.join(texts)


def _part_text(part: object, param: str) -> str:
    match part:
        case str(text) | {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "text" | "refusal" as kind}:
            raise InvalidRequest(f"{param}.{kind} must be a string", param=param)
        case {"type": kind}:
            raise InvalidRequest(f"{param} has the type {quoted(kind)}; this model reads text parts only", param=param)
    raise InvalidRequest(f"{param} has no type; send {{'type': 'text', 'text': ...}}", param=param)


def _tool_call(call: Any) -> Any:
    """Arguments as an object, where they are one or a text that is the JSON of a sensible one; else as they are."""
    match call:
        case {"function": {"arguments": str(text)} as function}:
            if has_more_values(text, MAX_ARGUMENT_VALUES):
                return call
            try:
                values = json.loads(text or "{}")
            except (ValueError, RecursionError):
                return call
        case {"function": {"arguments": dict(values)} as function}:
            text = json.dumps(values, ensure_ascii=False)
        case _:
            return call
    if not isinstance(values, dict):
        return call
    return {**call, "function": {**function, "arguments": Arguments(values, text or "{}")}}


def _textual(call: Any) -> Any:
    match call:
        case {"function": {"arguments": Arguments() as arguments} as function}:
            return {**call, "function": {**function, "arguments": str(arguments)}}
    return call
