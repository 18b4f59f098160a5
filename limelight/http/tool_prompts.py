"""Tools for models whose chat template knows of none: told in the system message, and past calls as text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from limelight.http.call_forms import CallForm, FunctionTool

Messages = tuple[Mapping[str, Any], ...]


def with_tools_told(messages: Messages, tools: Sequence[FunctionTool], form: CallForm, *, optional: bool) -> Messages:
    """The messages with the tools, and how to call them, at the end of the system message.

    Args:
        optional: the model may answer with text as well.
    """
    lines = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
    example = form.before + form.written("NAME", '{"PARAMETER": VALUE}') + form.after
    how = "To call one, answer with its name and arguments:"
    if optional:
        how = "Where one of them is needed, answer with its name and arguments; otherwise answer as usual:"
    text = f"These functions can be called:\n{lines}\n{how}\n{example}"
    if messages and messages[0].get("role") == "system":
        told = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}".strip()}
        return (told, *messages[1:])
    return ({"role": "system", "content": text}, *messages)


def with_calls_as_text(messages: Messages, form: CallForm) -> Messages:
    """The messages with earlier calls, and their results, as text of assistant and user."""
    names: dict[str, str] = {}
    written: list[Mapping[str, Any]] = []
    for message in messages:
        if message.get("role") == "tool":
            name = message.get("name") or names.get(message.get("tool_call_id") or "")
            beginning = f"Result of {name}:" if name else "Result:"
            written.append({"role": "user", "content": f"{beginning}\n{message['content']}"})
        elif calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
            texts = [form.written(call["function"]["name"], call["function"]["arguments"] or "{}") for call in calls]
            text = form.before + form.separator.join(texts) + form.after
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            written.append({**rest, "content": "\n".join(filter(None, [message["content"], text]))})
        else:
            written.append(message)
    return tuple(written)


def _function(tool: FunctionTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {name: value for name, value in function.items() if value is not None}
