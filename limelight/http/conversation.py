"""What chats, responses and messages have in common: a conversation on its way to the engine, and its answer's parts.

The endpoints translate their own wire format to `Conversation` and the parts of the answer back; what lies between them
is here, once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from limelight.engine import Engine
from limelight.generation import ChatPrompt, Completion, Delta, ReasoningFormat, SamplingParams, TokenLogprob
from limelight.parsing.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from limelight.structured_outputs import StructuredOutputsParams


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of its arguments; None: it takes none.
        strict: its arguments follow the schema without exception.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


class NamedTool(msgspec.Struct, frozen=True):
    """The model must call this function."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as every endpoint can say it.

    Attributes:
        messages: for the model's chat template, in the shape of the OpenAI API (`template_messages`).
        answer_format: what the answer's text must look like, None: anything.
        include_reasoning: give the reasoning to the client; without it it is generated and dropped.
        reasoning: switch the model's reasoning on or off, where its template can; None: the model's default.
        template_arguments: further variables of the template; they win over `reasoning`.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    answer_format: StructuredOutputsParams | None = None
    include_reasoning: bool = True
    reasoning: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_arguments: Mapping[str, Any] = {}


class AnswerPart(msgspec.Struct, frozen=True):
    """A part of a choice, with the log-probabilities of the tokens that it came from (None unless asked for)."""

    part: Part
    logprobs: tuple[TokenLogprob, ...] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A whole call; `arguments` is JSON."""

    name: str
    arguments: str


class WholeParts(msgspec.Struct, frozen=True, kw_only=True):
    """A whole choice, its parts joined. `finish_reason` is that of the OpenAI API, "tool_calls" included."""

    reasoning: str
    text: str
    calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: str


class AnswerReader:
    """Finds the parts of one choice. Joined, they are the same however the choice is cut into deltas."""

    def __init__(self) -> None:
        self._num_calls = 0

    def feed(self, delta: Delta) -> list[AnswerPart]:
        """The parts that are certain now; all of them, if the delta is the choice's last."""
        parts = []
        if delta.reasoning:
            parts.append(AnswerPart(ReasoningPart(delta.reasoning)))
        if delta.text or delta.logprobs:
            parts.append(AnswerPart(TextPart(delta.text), delta.logprobs))
        return parts

    def finish_reason(self, ended: Delta | Completion) -> str:
        """The reason on the wire, once the choice has ended: "tool_calls" where the model wants a call to be made."""
        assert ended.finish_reason is not None, "the choice has ended"
        return "tool_calls" if self._num_calls else ended.finish_reason.value


class PreparedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine gets, and how its answer is read."""

    prompt: ChatPrompt
    sampling: SamplingParams
    reasoning: ReasoningFormat | None

    def reader(self) -> AnswerReader:
        """A reader for one choice."""
        return AnswerReader()

    def whole(self, output: Completion) -> WholeParts:
        """The parts of a finished choice: what a reader finds in it, joined."""
        reader = self.reader()
        delta = Delta(
            index=output.index,
            reasoning=output.reasoning,
            text=output.text,
            logprobs=output.logprobs,
            finish_reason=output.finish_reason,
        )
        parts = [part.part for part in reader.feed(delta)]
        return WholeParts(
            reasoning="".join(part.text for part in parts if isinstance(part, ReasoningPart)),
            text="".join(part.text for part in parts if isinstance(part, TextPart)),
            calls=_calls(parts),
            logprobs=output.logprobs,
            finish_reason=reader.finish_reason(output),
        )


def prepare(engine: Engine, conversation: Conversation, sampling: SamplingParams) -> PreparedConversation:
    """What the engine is asked for so that its answer fits the conversation.

    Args:
        sampling: as the request and the model's defaults say.

    Raises:
        InvalidRequest: the model cannot do what the conversation asks for; `param` names the field of a chat request.
    """
    del engine
    return PreparedConversation(
        prompt=ChatPrompt(
            messages=conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            template_arguments=conversation.template_arguments,
        ),
        sampling=msgspec.structs.replace(sampling, structured_outputs=conversation.answer_format),
        reasoning=None,
    )


def _calls(parts: Sequence[Part]) -> tuple[ToolCall, ...]:
    names = {part.index: part.name for part in parts if isinstance(part, CallStart)}
    pieces: dict[int, list[str]] = {index: [] for index in names}
    for part in parts:
        if isinstance(part, CallArguments):
            pieces[part.index].append(part.text)
    return tuple(ToolCall(name, "".join(pieces[index])) for index, name in names.items())
