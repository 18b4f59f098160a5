"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`, as the official client 2.14 writes them."""

from typing import Annotated, Any, Literal

import msgspec

from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.anthropic import COUNT_TOKENS_FIELDS, MESSAGES_FIELDS
from limelight.http.protocol.sampling import Integer


class _Block(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What blocks have in common; where a prompt may be cached is not for clients to say here."""

    cache_control: dict[str, Any] | None = None


class TextBlock(_Block, frozen=True, kw_only=True, tag="text"):
    """Text. `citations` say where it came from and are not part of it."""

    text: str
    citations: list[Any] | None = None


class ToolUseBlock(_Block, frozen=True, kw_only=True, tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


class ThinkingBlock(_Block, frozen=True, kw_only=True, tag="thinking"):
    """What the assistant wrote to itself. The signature is given back unread."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(_Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    """Reasoning that only its maker can read: left out."""

    data: str


class ImageBlock(_Block, frozen=True, kw_only=True, tag="image"):
    """An image."""

    source: Any = None


class DocumentBlock(_Block, frozen=True, kw_only=True, tag="document"):
    """A document."""

    source: Any = None
    title: str | None = None
    context: str | None = None
    citations: Any = None


class SearchResultBlock(_Block, frozen=True, kw_only=True, tag="search_result"):
    """A search result: text with its source."""

    content: list[TextBlock]
    source: str
    title: str
    citations: Any = None


ResultContent = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(_Block, frozen=True, kw_only=True, tag="tool_result"):
    """What a call gave."""

    tool_use_id: str
    content: str | list[ResultContent] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None


Block = (
    TextBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class InputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client. One without an `input_schema` would run on the server, and there are none."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and which tool is called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model reasons, and how long; `display: "omitted"` keeps it from the answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Integer | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the text of the answer must look like."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Format of the answer, and effort of the reasoning."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class ConversationFields(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints read."""

    model: str
    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    speed: str | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class MessagesRequest(ConversationFields, frozen=True, kw_only=True):
    """The body of `/v1/messages`."""

    max_tokens: Integer
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    container: Any = None
    diagnostics: Any = None
    return_timings: bool | None = None


class CountTokensRequest(ConversationFields, frozen=True, kw_only=True):
    """The body of `/v1/messages/count_tokens`."""


_MESSAGE_FIELDS = {"messages": frozenset(InputMessage.__struct_fields__), "tools": frozenset(Tool.__struct_fields__)}

MESSAGES_DECODER = Decoder(MessagesRequest, MESSAGES_FIELDS, _MESSAGE_FIELDS)
COUNT_TOKENS_DECODER = Decoder(CountTokensRequest, COUNT_TOKENS_FIELDS, _MESSAGE_FIELDS)
