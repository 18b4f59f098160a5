"""`/v1/chat/completions` on the wire: what comes in, what goes out."""

from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.generation import MAX_LOGPROBS, SamplingParams, TokenLogprob
from limelight.http.conversation import Conversation, FunctionTool, NamedTool, ToolChoice
from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.chat import CHAT_FIELDS
from limelight.http.protocol.logprobs import alternatives, finite, token_name
from limelight.http.protocol.messages import MESSAGE_FIELDS, AssistantMessage, Message, template_messages
from limelight.http.protocol.response_format import answer_form
from limelight.http.protocol.sampling import OBJECT_FIELDS, GenerationFields, Integer, sampling_params
from limelight.http.protocol.tools import (
    FunctionDefinition,
    FunctionName,
    NamedToolChoice,
    ToolDefinition,
    function_tools,
    legacy_choice,
    legacy_functions,
    tool_choice,
)

NO_REASONING = "none"
"""The `reasoning_effort` that switches reasoning off."""
TEMPLATE_OWN_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""Variables that have a field of their own; `chat_template_kwargs` cannot override them."""


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of a chat request."""

    messages: list[Message]
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: str | FunctionName | None = None
    response_format: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    add_special_tokens: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    echo: bool | None = None


CHAT_DECODER = Decoder(ChatRequest, CHAT_FIELDS, {"messages": MESSAGE_FIELDS, **OBJECT_FIELDS})


def chat_conversation(chat: ChatRequest) -> Conversation:
    """What the request says, in the form that all endpoints share.

    Raises:
        InvalidRequest: no messages, or fields that contradict each other or are malformed.
    """
    if not chat.messages:
        raise InvalidRequest("messages is empty; send at least one message", param="messages")
    continues = bool(chat.continue_final_message)
    if continues and chat.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    if continues and not isinstance(chat.messages[-1], AssistantMessage):
        raise InvalidRequest(
            "continue_final_message needs an assistant message at the end of messages", param="continue_final_message"
        )
    tools, choice = _tools(chat)
    return Conversation(
        messages=template_messages(chat.messages),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=chat.parallel_tool_calls is not False and chat.functions is None,
        answer_format=answer_form(chat.response_format, chat.structured_outputs),
        include_reasoning=chat.include_reasoning is not False,
        reasoning=None if chat.reasoning_effort is None else chat.reasoning_effort != NO_REASONING,
        add_generation_prompt=not continues if chat.add_generation_prompt is None else chat.add_generation_prompt,
        continue_final_message=continues,
        template_arguments=_template_arguments(chat),
        template=chat.chat_template,
        add_special_tokens=bool(chat.add_special_tokens),
    )


def _tools(chat: ChatRequest) -> tuple[tuple[FunctionTool, ...], ToolChoice]:
    """The functions that may be called, and whether one must be."""
    if chat.functions is None:
        if chat.function_call not in (None, "none"):
            raise InvalidRequest("function_call needs functions", param="function_call")
        tools, choice = function_tools(chat.tools), tool_choice(chat.tool_choice)
        if isinstance(choice, NamedTool) and not tools:
            raise InvalidRequest("tool_choice names a function, but there are no tools", param="tool_choice")
        return tools, choice
    if chat.tools is not None:
        raise InvalidRequest("functions is the first form of tools; send one of them", param="functions")
    return legacy_functions(chat.functions), legacy_choice(chat.function_call)


def _template_arguments(chat: ChatRequest) -> dict[str, Any]:
    arguments = dict(chat.chat_template_kwargs or {})
    own = TEMPLATE_OWN_VARIABLES & arguments.keys()
    if own:
        raise InvalidRequest(
            f"chat_template_kwargs cannot set {', '.join(sorted(own))}; use the request field",
            param="chat_template_kwargs",
        )
    if chat.documents is not None:
        arguments["documents"] = chat.documents
    if chat.reasoning_effort not in (None, NO_REASONING):
        arguments.setdefault("reasoning_effort", chat.reasoning_effort)
    return arguments


def echoed_text(chat: ChatRequest) -> str:
    """What the answer begins with under `echo`: the last message, if it is an assistant's."""
    last = template_messages(chat.messages[-1:]) if chat.echo else ()
    return str(last[0]["content"]) if last and last[0]["role"] == "assistant" else ""


def chat_sampling(chat: ChatRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling of a chat: without a limit of its own it runs to the end of the context.

    Raises:
        InvalidRequest: a value is out of range.
    """
    max_tokens = chat.max_tokens
    if chat.max_completion_tokens is not None:
        max_tokens = chat.max_completion_tokens
        if max_tokens < 1:
            raise InvalidRequest(
                f"max_completion_tokens is {max_tokens}, must be at least 1", param="max_completion_tokens"
            )
    return sampling_params(
        chat,
        defaults,
        max_tokens=defaults.max_tokens if max_tokens is None else max_tokens,
        logprobs=_num_logprobs(chat),
        prompt_logprobs=chat.prompt_logprobs,
    )


def _num_logprobs(chat: ChatRequest) -> int | None:
    if not chat.logprobs:
        if chat.logprob_token_ids:
            raise InvalidRequest("logprob_token_ids needs logprobs: true", param="logprob_token_ids")
        if chat.top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    number = chat.top_logprobs or 0
    if not 0 <= number <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {number}, must be an integer from 0 to {MAX_LOGPROBS}", param="top_logprobs"
        )
    return number


class TopLogprob(msgspec.Struct, frozen=True, gc=False):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobEntry(msgspec.Struct, frozen=True, gc=False):
    """A drawn token. `bytes` are its own raw bytes: joined over the entries they are the exact text."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """`choice.logprobs`."""

    content: list[LogprobEntry]
    refusal: None = None


def choice_logprobs(entries: tuple[TokenLogprob, ...] | None, *, as_ids: bool = False) -> ChoiceLogprobs | None:
    """The wire form of a choice's log-probabilities; `as_ids` names tokens by their ids."""
    if entries is None:
        return None
    return ChoiceLogprobs(
        [
            LogprobEntry(
                token_name(entry, as_id=as_ids),
                finite(entry.logprob),
                list(entry.bytes),
                [
                    TopLogprob(token_name(top, as_id=as_ids), finite(top.logprob), list(top.bytes))
                    for top in alternatives(entry)
                ],
            )
            for entry in entries
        ]
    )
