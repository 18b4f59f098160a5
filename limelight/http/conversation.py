"""What chats, responses and messages have in common: a conversation on its way to the engine, and its answer's parts.

The endpoints translate their own wire format to `Conversation` and the parts of the answer back; what lies between them
is here, once.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from limelight.engine import Engine
from limelight.errors import InvalidRequest
from limelight.generation import ChatPrompt, Completion, Delta, ReasoningFormat, SamplingParams, TokenLogprob
from limelight.http.answer_reader import AnswerPart as AnswerPart
from limelight.http.answer_reader import AnswerReader as AnswerReader
from limelight.http.call_forms import CALL_FORMS, JSON_LIST, form_of_calls, form_of_text_with_calls
from limelight.http.call_forms import FunctionTool as FunctionTool
from limelight.http.tool_prompts import with_calls_as_text, with_tools_told
from limelight.parsing.answer_format import AnswerFormat
from limelight.parsing.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from limelight.parsing.tool_calls.formats import TOOL_FORMATS, new_parser
from limelight.quoting import shorten
from limelight.structured_outputs import StructuredOutputsParams


class NamedTool(msgspec.Struct, frozen=True):
    """The model must call this function."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as every endpoint can say it.

    Attributes:
        messages: for the model's chat template, in the shape of the OpenAI API (`template_messages`).
        answer_format: what the answer's text must look like, None: as the sampling says.
        include_reasoning: give the reasoning to the client; without it it is generated and dropped.
        reasoning: switch the model's reasoning on or off, where its template can; None: the model's default.
        template_arguments: further variables of the template; they win over `reasoning`.
        template, add_special_tokens: as in `ChatPrompt`.
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
    template: str | None = None
    add_special_tokens: bool = False


MAX_TOOLS = 1024
TOLD_FORMAT = "hermes"
"""In which a model may call tools that its chat template knows nothing of: many models have met it."""
NO_AUTO = (
    "this model's chat template has tools, but not in a format of calls that is known here, so calls cannot be told "
    'from text; set tool_choice to "required" or to a function, or start the server with --tool-call-parser'
)


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


class PreparedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine gets, and how its answer is read.

    Attributes:
        tool_format: the format in which calls are looked for; None: all text is text.
        tools: that may be called.
        calls_only: the answer is held to calls.
        is_forced: the client has named the function.
    """

    prompt: ChatPrompt
    sampling: SamplingParams
    reasoning: ReasoningFormat | None
    tool_format: str | None = None
    tools: tuple[FunctionTool, ...] = ()
    max_calls: int | None = None
    include_reasoning: bool = True
    calls_only: bool = False
    is_forced: bool = False

    def reader(self) -> AnswerReader:
        """A reader for one choice."""
        schemas = {tool.name: tool.schema for tool in self.tools}
        return AnswerReader(
            None if self.tool_format is None else new_parser(self.tool_format, schemas),
            max_calls=self.max_calls,
            include_reasoning=self.include_reasoning,
            calls_only=self.calls_only,
            forced=self.is_forced,
        )

    def new_call_id(self) -> str:
        """A fresh id of a call. Mistral's chat templates take nine letters and digits and nothing else."""
        return uuid.uuid4().hex[:9] if self.tool_format == "mistral" else f"call_{uuid.uuid4().hex[:24]}"

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
    answers = engine.answer_format
    tools = _callable_tools(conversation)
    wanted = conversation.answer_format or sampling.structured_outputs
    if tools and not sampling.detokenize:
        raise InvalidRequest(
            "tools need text, in which calls are found; leave out detokenize: false, or tools", param="detokenize"
        )
    tool_format, form = _calling(answers, conversation, tools, wanted)
    shown = sampling.shown_special_tokens | answers.reasoning_token_ids
    if tool_format == answers.tool_format:
        shown |= answers.tool_token_ids
    return PreparedConversation(
        prompt=_prompt(answers, conversation, tools, tool_format),
        sampling=msgspec.structs.replace(sampling, structured_outputs=form, shown_special_tokens=shown),
        reasoning=answers.reasoning,
        tool_format=tool_format,
        tools=tools,
        max_calls=None if conversation.parallel_tool_calls else 1,
        include_reasoning=conversation.include_reasoning,
        calls_only=bool(tools) and conversation.tool_choice != "auto",
        is_forced=isinstance(conversation.tool_choice, NamedTool),
    )


def conversation_prompt(engine: Engine, conversation: Conversation) -> ChatPrompt:
    """The prompt alone, whether or not its tools could be called.

    Raises:
        InvalidRequest: the template cannot do what the conversation asks for.
    """
    answers = engine.answer_format
    return _prompt(answers, conversation, _callable_tools(conversation), answers.tool_format)


def _prompt(
    answers: AnswerFormat, conversation: Conversation, tools: tuple[FunctionTool, ...], tool_format: str | None
) -> ChatPrompt:
    own_template = conversation.template is not None
    renders_tools = answers.renders_tools or own_template
    messages = conversation.messages
    form = CALL_FORMS.get(tool_format or JSON_LIST, CALL_FORMS[JSON_LIST])
    if not (answers.renders_calls or own_template):
        messages = with_calls_as_text(messages, form)
    if tools and not renders_tools:
        messages = with_tools_told(messages, tools, form, optional=conversation.tool_choice == "auto")
    return ChatPrompt(
        messages=messages,
        tools=tuple(map(_template_tool, tools)) if tools and renders_tools else None,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        template_arguments=_template_arguments(answers, conversation),
        template=conversation.template,
        add_special_tokens=conversation.add_special_tokens,
    )


def _callable_tools(conversation: Conversation) -> tuple[FunctionTool, ...]:
    """The tools that the answer may call."""
    choice, tools = conversation.tool_choice, conversation.tools
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"there are {len(tools)} tools, at most {MAX_TOOLS} are allowed", param="tools")
    if choice == "none":
        return ()
    if not isinstance(choice, NamedTool):
        if choice == "required" and not tools:
            raise InvalidRequest('tool_choice is "required", but there are no tools; send some', param="tool_choice")
        return tools
    named = tuple(tool for tool in tools if tool.name == choice.name)
    if not named:
        known = ", ".join(tool.name for tool in tools) or "none"
        raise InvalidRequest(
            f"tool_choice names the function {shorten(choice.name, 100)!r}, which is not among tools "
            f"({shorten(known, 300)})",
            param="tool_choice",
        )
    return named


def _calling(
    answers: AnswerFormat,
    conversation: Conversation,
    tools: tuple[FunctionTool, ...],
    wanted: StructuredOutputsParams | None,
) -> tuple[str | None, StructuredOutputsParams | None]:
    """The format in which calls are looked for, and the form that the answer must have."""
    own = answers.tool_format
    if not tools:
        return (own if own and TOOL_FORMATS[own].is_whole else None), wanted
    several = conversation.parallel_tool_calls
    if conversation.tool_choice == "auto":
        if own is None and answers.renders_tools:
            raise InvalidRequest(NO_AUTO, param="tool_choice")
        used = own or TOLD_FORMAT
        return used, form_of_text_with_calls(used, tools, wanted, several=several)
    used = own if own is not None and own in CALL_FORMS else JSON_LIST
    several = several and conversation.tool_choice == "required"
    return used, form_of_calls(used, tools, several=several, param="tools")


def _template_tool(tool: FunctionTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.schema}
    return {"type": "function", "function": function}


def _template_arguments(answers: AnswerFormat, conversation: Conversation) -> Mapping[str, Any]:
    if conversation.reasoning is None:
        return conversation.template_arguments
    if answers.reasoning_switch is not None:
        return {answers.reasoning_switch: conversation.reasoning, **conversation.template_arguments}
    if answers.reasoning is not None and not conversation.reasoning:
        raise InvalidRequest(
            "this model's chat template cannot switch its reasoning off; leave the reasoning on, or set a "
            "thinking_token_budget",
            param="reasoning_effort",
        )
    return conversation.template_arguments


def _calls(parts: Sequence[Part]) -> tuple[ToolCall, ...]:
    names = {part.index: part.name for part in parts if isinstance(part, CallStart)}
    pieces: dict[int, list[str]] = {index: [] for index in names}
    for part in parts:
        if isinstance(part, CallArguments):
            pieces[part.index].append(part.text)
    return tuple(ToolCall(name, "".join(pieces[index])) for index, name in names.items())
