"""Prompts and answers as the GenAI conventions write them into spans: only for those who ask for content in traces."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from limelight.generation import ChatPrompt, Delta, Prompt, TextPrompt
from limelight.telemetry import conventions as names


def input_attributes(prompt: Prompt) -> dict[str, str]:
    """`gen_ai.input.messages` and `gen_ai.tool.definitions` as JSON; nothing for a prompt of token ids."""
    match prompt:
        case ChatPrompt(messages=messages, tools=tools):
            attributes = {names.GEN_AI_INPUT_MESSAGES: _json([_message(message) for message in messages])}
            if tools is not None:
                attributes[names.GEN_AI_TOOL_DEFINITIONS] = _json(tools)
            return attributes
        case TextPrompt(text=text):
            return {names.GEN_AI_INPUT_MESSAGES: _json([{"role": "user", "parts": [_text(text)]}])}
    return {}


def output_attributes(deltas: Sequence[Delta], ending: str) -> dict[str, str]:
    """`gen_ai.output.messages` as JSON, one message per choice that has begun.

    Args:
        deltas: one per choice, whole.
        ending: the finish reason of a choice that did not come to its end.
    """
    messages = [
        {
            "role": "assistant",
            "parts": [
                *([{"type": "reasoning", "content": delta.reasoning}] if delta.reasoning else []),
                _text(delta.text),
            ],
            "finish_reason": ending if delta.finish_reason is None else delta.finish_reason.value,
        }
        for delta in sorted(deltas, key=lambda delta: delta.index)
    ]
    return {names.GEN_AI_OUTPUT_MESSAGES: _json(messages)} if messages else {}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """An OpenAI-shaped message in the conventions' shape."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return {"role": role, "parts": [response]}
    parts = [_text(content)] if isinstance(content, str) else [_part(part) for part in content or ()]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    return {"role": role, "parts": parts}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    return _text(part["text"]) if part.get("type") == "text" else dict(part)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
