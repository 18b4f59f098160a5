"""What goes out: output items, and the response that holds them."""

from typing import Any, Literal

import msgspec

from limelight.generation import Usage
from limelight.http.protocol.chat import LogprobEntry
from limelight.http.protocol.responses.request import TextConfig
from limelight.http.protocol.responses.tools import Tool, ToolChoiceObject
from limelight.http.protocol.timings import AnswerTimings

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
FINAL: frozenset[ResponseStatus] = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""A response that has one of these never changes again."""


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message. `logprobs` is left out unless asked for."""

    text: str
    annotations: tuple[()] = ()
    logprobs: list[LogprobEntry] | msgspec.UnsetType = msgspec.UNSET


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """What the model wrote to itself."""

    text: str


OutputPart = OutputText | ReasoningText


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Text for the reader."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...] = ()


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Reasoning as it is; there are no summaries of it."""

    id: str
    status: ItemStatus
    summary: tuple[()] = ()
    content: tuple[ReasoningText, ...] = ()


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function; `arguments` is JSON, unless the response is incomplete."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus


class CustomCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    call_id: str
    name: str
    input: str = ""
    status: ItemStatus


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(msgspec.Struct, frozen=True):
    """`cached_tokens` came out of the prefix cache. Writing into it is never counted apart."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Those of the output that were reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """`usage`."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Reasoning(msgspec.Struct, frozen=True):
    """`reasoning`, as it was taken."""

    effort: str | None = None
    summary: None = None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response. What the request asked for comes back with it, defaults filled in."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: tuple[OutputItem, ...] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: Reasoning
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | ToolChoiceObject
    tools: list[Tool]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    timings: AnswerTimings = msgspec.UNSET
    user: str | None


def response_usage(usage: Usage) -> ResponseUsage:
    """`usage` on the wire."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(usage.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What deleting answers."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of input items; `first_id` and `last_id` are empty in an empty one."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str
    last_id: str
    has_more: bool
