"""Chat messages as clients send them, and the plain form that the chat template gets.

Every field that we put into an answer is accepted back, and so is the official client's `message.model_dump()`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.http.protocol.sizes import MAX_ENTRIES
from limelight.quoting import quoted

MEDIA_PARTS = ("image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One content part. Only `text` (and an assistant's `refusal`) can be read; the rest is refused by name."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | list[Part]


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """Name and arguments (a string holding JSON) of a call; `parsed_arguments` repeats them, from a client's helper."""

    name: str
    arguments: str
    parsed_arguments: Any = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that the assistant made earlier in the conversation."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"
    index: int | None = None


class SystemMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """Instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """Instructions under their newer name; open models were trained on `system`, so that is what the template gets."""

    content: Content
    name: str | None = None


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """A question."""

    content: Content
    name: str | None = None


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """The result of a call."""

    content: Content
    tool_call_id: str | None = None
    name: str | None = None


class FunctionMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="function"):
    """The result of a call in the API's first form; the template gets a `tool` message."""

    content: Content | None = None
    name: str | None = None


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """An answer. `audio` must be null; `annotations` are about the text and not part of it.

    `parsed` is what the official client's helpers add to a message: the content once more, read as JSON.
    """

    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None
    parsed: Any = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage

_KINDS = (SystemMessage, DeveloperMessage, UserMessage, AssistantMessage, ToolMessage, FunctionMessage)
MESSAGE_FIELDS = frozenset({"role"}.union(*(kind.__struct_fields__ for kind in _KINDS)))
"""Every name that a message may have, whatever its role."""

_ROLES: dict[type[msgspec.Struct], str] = {DeveloperMessage: "system", FunctionMessage: "tool"}


def template_messages(messages: Sequence[Message]) -> tuple[Mapping[str, Any], ...]:
    """The messages as dictionaries with string contents.

    Raises:
        InvalidRequest: a message has no content, or there are too many parts; `param` names it.
        UnsupportedField: an image, audio or file part.
    """
    num_entries = sum(map(_num_entries, messages))
    if num_entries > MAX_ENTRIES:
        raise InvalidRequest(
            f"messages has {num_entries} content parts, tool calls and annotations, at most {MAX_ENTRIES} are allowed",
            param="messages",
        )
    return tuple(_template_message(message, f"messages[{index}]") for index, message in enumerate(messages))


def _num_entries(message: Message) -> int:
    lists: list[Any] = [message.content]
    if isinstance(message, AssistantMessage):
        lists += [message.tool_calls, message.annotations]
    return sum(len(entries) for entries in lists if isinstance(entries, list))


def _template_message(message: Message, where: str) -> dict[str, Any]:
    role = _ROLES.get(type(message)) or str(type(message).__struct_config__.tag)
    content = None if _says_nothing(message) else message.content
    plain: dict[str, Any] = {"role": role, "content": content_text(content, f"{where}.content")}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage) and message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        plain |= _assistant_fields(message, where)
    return plain


def _assistant_fields(message: AssistantMessage, where: str) -> dict[str, Any]:
    if message.audio is not None:
        raise UnsupportedField(f"{where}.audio is not supported: send what was said as text", param=f"{where}.audio")
    fields: dict[str, Any] = {}
    if not message.content and message.refusal is not None:
        fields["content"] = message.refusal
    calls = list(message.tool_calls or ())
    if message.function_call is not None:
        calls.append(ToolCall(function=message.function_call))
    if calls:
        fields["tool_calls"] = [
            {"type": "function", **msgspec.to_builtins(msgspec.structs.replace(call, index=None))} for call in calls
        ]
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if reasoning is not None:
        fields["reasoning_content"] = reasoning
    return fields


def _says_nothing(message: Message) -> bool:
    """An answer that consists of calls or a refusal has no content, however a client writes that."""
    return (
        isinstance(message, AssistantMessage)
        and not message.content
        and bool(message.tool_calls or message.function_call or message.refusal)
    )


def content_text(content: Content | None, where: str) -> str:
    """Text of a content; parts are joined by a line break, as vLLM does.

    Raises:
        InvalidRequest: there are no parts, or one without text; `where` is the path that errors name.
        UnsupportedField: an image, audio or file part.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{where} is an empty list; send a string or at least one text part", param=where)
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Part, where: str) -> str:
    if part.type in ("text", "input_text", "output_text") and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in MEDIA_PARTS:
        raise UnsupportedField(
            f"{where} is of type {part.type}; this server reads text only, so send a text part", param=where
        )
    if part.type in ("text", "refusal"):
        raise InvalidRequest(f"{where}.{part.type} is missing", param=f"{where}.{part.type}")
    raise InvalidRequest(f"{where}.type is {quoted(part.type)}, must be 'text'", param=f"{where}.type")
