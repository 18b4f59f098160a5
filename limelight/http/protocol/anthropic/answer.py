"""What goes out: a message, the events that build one, and errors. Shapes of the official client 2.14."""

from typing import Any

import msgspec

from limelight.generation import Usage
from limelight.http.errors import ErrorObject
from limelight.http.protocol.timings import AnswerTimings


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text for the reader."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """What the model wrote to itself."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call that the client is to make."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(msgspec.Struct, frozen=True):
    """`output_tokens_details`."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. `input_tokens` are those that were computed; the prompt is their sum with the cached ones."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: OutputDetails | None = None


def message_usage(usage: Usage) -> MessageUsage:
    """The wire form of `usage`."""
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(usage.reasoning_tokens),
    )


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one that has just begun."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    timings: AnswerTimings = msgspec.UNSET


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: Message


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature of a reasoning, at its end."""

    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's arguments; joined, they are one JSON object."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is whole."""

    index: int


class StopDelta(msgspec.Struct, frozen=True):
    """How the message ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The message has ended."""

    delta: StopDelta
    usage: MessageUsage
    timings: AnswerTimings = msgspec.UNSET


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing; keeps the connection alive."""


class ErrorDetails(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """An error response, and the terminal event of a stream that failed."""

    error: ErrorDetails
    request_id: str


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | AnthropicError

OVERLOADED_STATUS = 529
"""Of an `overloaded_error`."""
_BY_STATUS = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error"}
_BY_TYPE = {"server_error": "api_error"}


def anthropic_error(error: ErrorObject, status: int | None = None) -> AnthropicError:
    """`error` in the shape of this API; `status` is that of the response, None inside a stream."""
    kind = _BY_STATUS.get(status or 0) or _BY_TYPE.get(error.type, error.type)
    return AnthropicError(error=ErrorDetails(kind, error.message), request_id=error.request_id)


class TokenCount(msgspec.Struct, frozen=True):
    """The answer of `count_tokens`."""

    input_tokens: int
