"""`/v1/chat/completions` on the wire: what comes in, what goes out."""

from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.generation import MAX_LOGPROBS, ChatPrompt, SamplingParams, TokenLogprob
from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.chat import CHAT_FIELDS
from limelight.http.protocol.logprobs import PromptLogprobs, alternatives, finite, token_name
from limelight.http.protocol.messages import MESSAGE_FIELDS, AssistantMessage, Message, template_messages
from limelight.http.protocol.returned_tokens import ReturnedPrompt, TokenIds
from limelight.http.protocol.sampling import GenerationFields, Integer, sampling_params
from limelight.http.protocol.usage import ChunkUsage, UsageObject

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
    parallel_tool_calls: bool | None = None
    add_special_tokens: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    echo: bool | None = None


CHAT_DECODER = Decoder(ChatRequest, CHAT_FIELDS, {"messages": MESSAGE_FIELDS})


def chat_prompt(chat: ChatRequest) -> ChatPrompt:
    """What the model's template will render.

    Raises:
        InvalidRequest: no messages, or flags that contradict each other.
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
    arguments = dict(chat.chat_template_kwargs or {})
    own = TEMPLATE_OWN_VARIABLES & arguments.keys()
    if own:
        raise InvalidRequest(
            f"chat_template_kwargs cannot set {', '.join(sorted(own))}; use the request field",
            param="chat_template_kwargs",
        )
    if chat.documents is not None:
        arguments["documents"] = chat.documents
    if chat.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", chat.reasoning_effort)
    return ChatPrompt(
        messages=template_messages(chat.messages),
        add_generation_prompt=not continues if chat.add_generation_prompt is None else chat.add_generation_prompt,
        continue_final_message=continues,
        template_arguments=arguments,
        template=chat.chat_template,
        add_special_tokens=bool(chat.add_special_tokens),
    )


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


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobEntry(msgspec.Struct, frozen=True):
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


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: str = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `stop_reason`: the stop string or token id; `finish_details`: a finer word for `finish_reason`."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    finish_details: str | None
    token_ids: TokenIds = msgspec.UNSET


class ChatCompletion(ReturnedPrompt, frozen=True, kw_only=True):
    """A whole response."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: None = None
    choices: list[ChatChoice]
    usage: UsageObject
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class ChunkDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new; the final chunk of a choice has nothing."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice's share of a chunk; `stop_reason` and `finish_details` go with `finish_reason`."""

    index: int
    delta: ChunkDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    finish_details: str | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: TokenIds = msgspec.UNSET


class ChatChunk(ReturnedPrompt, frozen=True, kw_only=True):
    """One frame of a stream. `usage` is left out unless the client asked for it."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: None = None
    choices: tuple[ChunkChoice, ...]
    usage: ChunkUsage = msgspec.UNSET
