"""OpenAI-shaped messages -> what chat templates expect. Pure; copies, never changes what it was given.

Rules, in this order:
- A field that is null counts as absent; absent content is "" (so null, absent and "" render the same).
- `tool_calls[].function.arguments` is a JSON string in the API and an object for templates.
- Reasoning is passed on under the names that templates read, `reasoning_content` and `thinking`.
- Content parts: only text. Templates that loop over content get the parts, others the texts joined by a line feed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from limelight.errors import InvalidRequest

PART_SEPARATOR = "\n"
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def template_messages(messages: Sequence[Mapping[str, Any]], *, keep_parts: bool) -> list[dict[str, Any]]:
    """The messages in plain lists and dictionaries.

    Args:
        keep_parts: the template handles lists of content parts.

    Raises:
        InvalidRequest: a message holds what no text model can read; `param` names the place.
    """
    return [_message(message, f"messages[{index}]", keep_parts=keep_parts) for index, message in enumerate(messages)]


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
            return {str(key): plain(item, f"{param}.{key}") for key, item in value.items()}
        case list() | tuple():
            return [plain(item, f"{param}[{index}]") for index, item in enumerate(value)]
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
            raise InvalidRequest(f"{param} has the type {kind!r}; this model reads text parts only", param=param)
    raise InvalidRequest(f"{param} has no type; send {{'type': 'text', 'text': ...}}", param=param)


def _tool_call(call: Any) -> Any:
    """Arguments as an object, where they are a JSON object written as a string; else as they are."""
    match call:
        case {"function": {"arguments": str(arguments)}}:
            try:
                parsed = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                return call
            return {**call, "function": {**call["function"], "arguments": parsed}} if isinstance(parsed, dict) else call
    return call
