"""From a Messages request to the conversation that every endpoint shares, and to the settings of the draw."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.generation import MAX_STOP_STRINGS, SamplingParams
from limelight.http.conversation import Conversation, FunctionTool, NamedTool, ToolChoice
from limelight.http.protocol.anthropic.request import (
    Block,
    ConversationFields,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    MessagesRequest,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
)
from limelight.http.protocol.sizes import MAX_ENTRIES
from limelight.quoting import quoted
from limelight.structured_outputs import StructuredOutputsParams

Message = Mapping[str, Any]

MIN_BUDGET_TOKENS = 1


def conversation(fields: ConversationFields) -> Conversation:
    """What the request asks for.

    Raises:
        InvalidRequest: a block stands where it cannot, or fields contradict each other; `param` names it.
        UnsupportedField: an image, a document, or a tool that would run on the server.
    """
    messages = [*_system(fields), *_turns(fields.messages)]
    prefilled = bool(messages) and messages[-1]["role"] == "assistant"
    if prefilled and messages[-1].get("tool_calls"):
        raise InvalidRequest(
            "messages ends with a tool_use; send its tool_result in a user message, or leave the message out",
            param="messages",
        )
    thinking, output = fields.thinking, fields.output_config
    thinks = thinking is not None and thinking.type != "disabled"
    return Conversation(
        messages=tuple(messages),
        tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools or ())),
        tool_choice=_tool_choice(fields),
        parallel_tool_calls=not (fields.tool_choice and fields.tool_choice.disable_parallel_tool_use),
        answer_format=StructuredOutputsParams(json=output.format.schema) if output and output.format else None,
        include_reasoning=thinks and thinking is not None and thinking.display != "omitted",
        reasoning=thinks,
        add_generation_prompt=not prefilled,
        continue_final_message=prefilled,
        template_arguments={"reasoning_effort": output.effort} if thinks and output and output.effort else {},
    )


def sampling(fields: MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    """How tokens are drawn.

    Raises:
        InvalidRequest: a value is out of range; `param` names the field.
    """
    if fields.max_tokens < 1:
        raise InvalidRequest(f"max_tokens is {fields.max_tokens}, must be at least 1", param="max_tokens")
    stops = fields.stop_sequences or ()
    if len(stops) > MAX_STOP_STRINGS or "" in stops:
        raise InvalidRequest(
            f"stop_sequences has {len(stops)} strings; up to {MAX_STOP_STRINGS} are allowed, none of them empty",
            param="stop_sequences",
        )
    given = {
        name: getattr(fields, name) for name in ("temperature", "top_p", "top_k") if getattr(fields, name) is not None
    }
    return msgspec.structs.replace(
        defaults,
        **given,
        max_tokens=fields.max_tokens,
        stop=tuple(stops) or None,
        thinking_token_budget=_budget(fields),
    )


def _budget(fields: MessagesRequest) -> int | None:
    thinking = fields.thinking
    if thinking is None or thinking.type != "enabled":
        return None
    budget = thinking.budget_tokens
    if budget is None:
        raise InvalidRequest(
            "thinking.budget_tokens is missing; type enabled needs it, type adaptive does not",
            param="thinking.budget_tokens",
        )
    if not MIN_BUDGET_TOKENS <= budget < fields.max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens is {budget}, must be at least {MIN_BUDGET_TOKENS} and below max_tokens "
            f"({fields.max_tokens})",
            param="thinking.budget_tokens",
        )
    return budget


def _system(fields: ConversationFields) -> Iterator[Message]:
    if fields.system:
        text = fields.system if isinstance(fields.system, str) else "\n".join(block.text for block in fields.system)
        yield {"role": "system", "content": text}


def _turns(messages: Sequence[InputMessage]) -> list[dict[str, Any]]:
    """Messages for the template; turns of one role that follow each other become one."""
    if not messages:
        raise InvalidRequest("messages is empty; send at least one message", param="messages")
    num_blocks = sum(1 if isinstance(message.content, str) else len(message.content) for message in messages)
    if num_blocks > MAX_ENTRIES:
        raise InvalidRequest(f"messages has {num_blocks} blocks, at most {MAX_ENTRIES} are allowed", param="messages")
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        for turn in _messages(message, f"messages[{index}]"):
            if turns and turns[-1]["role"] == turn["role"] != "tool":
                _join(turns[-1], turn)
            else:
                turns.append(turn)
    return turns


def _join(earlier: dict[str, Any], later: Mapping[str, Any]) -> None:
    texts = [text for text in (earlier["content"], later["content"]) if text]
    earlier["content"] = "\n".join(texts)
    for name in ("tool_calls", "reasoning_content"):
        if name in later:
            earlier[name] = earlier[name] + later[name] if name in earlier else later[name]


def _messages(message: InputMessage, where: str) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if not message.content:
        raise InvalidRequest(f"{where}.content is an empty list; send at least one block", param=f"{where}.content")
    if message.role == "assistant":
        return [_assistant(message.content, where)]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(message.content):
        place = f"{where}.content[{index}]"
        if isinstance(block, ToolResultBlock):
            if message.role != "user":
                raise _misplaced(block, place, message.role)
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, place)})
        else:
            texts.append(_text(block, place, message.role))
    if texts or not results:
        return [*results, {"role": message.role, "content": "\n".join(texts)}]
    return results


def _assistant(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        match block:
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                pass
            case ToolUseBlock():
                arguments = msgspec.json.encode(block.input).decode()
                function = {"name": block.name, "arguments": arguments}
                calls.append({"type": "function", "id": block.id, "function": function})
            case _:
                texts.append(_text(block, f"{where}.content[{index}]", "assistant"))
    turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _result(block: ToolResultBlock, where: str) -> str:
    content = block.content or ""
    if not isinstance(content, str):
        content = "\n".join(
            _text(part, f"{where}.content[{index}]", "tool_result") for index, part in enumerate(content)
        )
    return f"Error: {content}" if block.is_error else content


def _text(block: Block, where: str, within: str) -> str:
    match block:
        case TextBlock():
            return block.text
        case SearchResultBlock():
            return "\n".join([block.title, block.source, *(part.text for part in block.content)])
        case ImageBlock() | DocumentBlock():
            raise UnsupportedField(
                f"{where} is of type {_type(block)}; this server reads text only, so send a text block", param=where
            )
    raise _misplaced(block, where, within)


def _misplaced(block: Block, where: str, within: str) -> InvalidRequest:
    return InvalidRequest(f"{where} is of type {_type(block)}, which cannot stand in a turn of {within}", param=where)


def _type(block: Block) -> str:
    return str(type(block).__struct_config__.tag)


def _tool(tool: Tool, where: str) -> FunctionTool:
    if tool.type not in (None, "custom") or tool.input_schema is None:
        kind = "has no input_schema" if tool.type in (None, "custom") else f"is of type {quoted(str(tool.type))}"
        raise UnsupportedField(
            f"{where} {kind}; this server runs no tools of its own: give name, description and input_schema of yours",
            param=where,
        )
    return FunctionTool(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=bool(tool.strict)
    )


def _tool_choice(fields: ConversationFields) -> ToolChoice:
    choice = fields.tool_choice
    if choice is None:
        return "auto" if fields.tools else "none"
    if choice.type in ("any", "tool") and not fields.tools:
        raise InvalidRequest(f"tool_choice is {choice.type}, but there are no tools", param="tool_choice")
    match choice.type:
        case "none":
            return "none"
        case "any":
            return "required"
        case "tool":
            if choice.name is None or choice.name not in {tool.name for tool in fields.tools or ()}:
                raise InvalidRequest(
                    f"tool_choice.name is {quoted(choice.name or '')}, which is none of the tools",
                    param="tool_choice.name",
                )
            return NamedTool(choice.name)
    return "auto"
