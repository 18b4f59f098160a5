"""What `/v1/chat/completions` answers, whole and in chunks."""

import msgspec

from limelight.http.protocol.chat import ChoiceLogprobs
from limelight.http.protocol.logprobs import PromptLogprobs
from limelight.http.protocol.returned_tokens import ReturnedPrompt, TokenIds
from limelight.http.protocol.timings import AnswerTimings
from limelight.http.protocol.usage import ChunkUsage, UsageObject

Text = str | msgspec.UnsetType


class CalledFunction(msgspec.Struct, frozen=True):
    """A function and its arguments, which are JSON."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model wants to be made."""

    id: str
    type: str = "function"
    function: CalledFunction


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message. `content` is null if there are calls and no text."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning: Text = msgspec.UNSET
    reasoning_content: Text = msgspec.UNSET
    tool_calls: list[AnswerToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


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
    timings: AnswerTimings = msgspec.UNSET


class ChunkFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the arguments; the first one of a call, which is empty, has the whole name."""

    arguments: str
    name: str | None = None


class ChunkToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call's share of a chunk; `id` and `type` come once, with the name."""

    index: int
    id: str | None = None
    type: str | None = None
    function: ChunkFunction


class ChunkDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new; the final chunk of a choice has nothing."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ChunkToolCall] | None = None
    function_call: ChunkFunction | None = None


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
    """One frame of a stream. `usage` and `timings` are left out unless the client asked for them."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: None = None
    choices: tuple[ChunkChoice, ...]
    usage: ChunkUsage = msgspec.UNSET
    timings: AnswerTimings = msgspec.UNSET
