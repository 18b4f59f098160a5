"""From items to the messages that the chat template gets.

An answer is several items (reasoning, message, calls) and one message of the template: items that follow each other on
the assistant's side are put together.
"""

from collections.abc import Sequence
from typing import Any

from limelight.errors import InvalidRequest
from limelight.http.protocol.messages import content_text
from limelight.http.protocol.responses.items import (
    CUSTOM_CALL,
    CUSTOM_OUTPUT,
    FUNCTION_CALL,
    FUNCTION_OUTPUT,
    MESSAGE,
    REASONING,
    Item,
)
from limelight.http.protocol.responses.tools import custom_arguments
from limelight.quoting import quoted


def template_messages(instructions: str | None, earlier: Sequence[Item], items: Sequence[Item]) -> list[dict[str, Any]]:
    """The conversation as dictionaries in the shape of the chat API, without references.

    Args:
        instructions: a system message before everything. Several system messages at the beginning are one: many
            templates know no more than that.
        earlier: the items of the responses that this one continues.
        items: those of the request itself; errors name them.

    Raises:
        InvalidRequest: a content is empty, or an output belongs to no call before it; `param` names it.
        UnsupportedField: an image, audio or file part.
    """
    transcript = _Transcript()
    if instructions is not None:
        transcript.add_message("system", instructions)
    for item in earlier:
        transcript.add(item, "previous_response_id")
    for index, item in enumerate(items):
        transcript.add(item, f"input[{index}]")
    return transcript.messages


class _Transcript:
    """The messages so far, and the assistant's message that further items may join."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None
        self._calls: set[str | None] = set()

    def add(self, item: Item, where: str) -> None:
        """Take in a checked item."""
        if item.type == MESSAGE:
            text = content_text(item.content, f"{where}.content")
            if item.role == "assistant":
                self._answer(text)
            else:
                self.add_message("user" if item.role == "user" else "system", text)
        elif item.type == REASONING:
            self._reasoning(item)
        elif item.type in (FUNCTION_CALL, CUSTOM_CALL):
            self._call(item)
        elif item.type in (FUNCTION_OUTPUT, CUSTOM_OUTPUT):
            self._output(item, where)

    def add_message(self, role: str, text: str) -> None:
        """A message of somebody other than the assistant."""
        self._turn = None
        if role == "system" and [message["role"] for message in self.messages] == ["system"]:
            self.messages[0]["content"] += f"\n\n{text}"
            return
        self.messages.append({"role": role, "content": text})

    def _answer(self, text: str) -> None:
        """Text goes with the reasoning or the calls before it; text after text is a message of its own."""
        message = self._turn
        if message is None or (message["content"] and "tool_calls" not in message):
            message = self._new_turn()
        message["content"] += text

    def _reasoning(self, item: Item) -> None:
        parts = item.content or item.summary or ""
        text = parts if isinstance(parts, str) else "\n".join(part.text or "" for part in parts)
        message = self._turn
        if message is None or message["content"] or "tool_calls" in message:
            message = self._new_turn()
        message["reasoning_content"] = message.get("reasoning_content", "") + text

    def _call(self, item: Item) -> None:
        """A call that broke off has no arguments that could be read, and nobody has made it."""
        if item.status == "incomplete":
            return
        arguments = item.arguments if item.type == FUNCTION_CALL else custom_arguments(item.input or "")
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}
        message = self._turn or self._new_turn()
        message.setdefault("tool_calls", []).append(call)
        self._calls.add(item.call_id)

    def _output(self, item: Item, where: str) -> None:
        if item.call_id not in self._calls:
            raise InvalidRequest(
                f"{where}.call_id is {quoted(item.call_id)}, but no call with this id comes before it",
                param=f"{where}.call_id",
            )
        self._turn = None
        text = content_text(item.output, f"{where}.output")
        self.messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})

    def _new_turn(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        self.messages.append(message)
        self._turn = message
        return message
