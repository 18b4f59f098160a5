"""A choice's parts -> the content blocks of a message, whole or event by event."""

import hashlib
import secrets
from collections.abc import Iterator

import msgspec

from limelight.generation import Completion, Delta
from limelight.http.conversation import AnswerPart, WholeParts
from limelight.http.protocol.anthropic.answer import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    Event,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from limelight.http.sse import text_pieces
from limelight.parsing.parts import CallArguments, CallStart, ReasoningPart, TextPart


def content_blocks(parts: WholeParts) -> list[ContentBlock]:
    """The blocks of a finished choice: its reasoning, its text, its calls."""
    blocks: list[ContentBlock] = []
    if parts.reasoning:
        blocks.append(ThinkingBlock(thinking=parts.reasoning, signature=_signature(parts.reasoning)))
    if parts.text or not (parts.reasoning or parts.calls):
        blocks.append(TextBlock(text=parts.text))
    blocks.extend(ToolUseBlock(id=_call_id(), name=call.name, input=_arguments(call.arguments)) for call in parts.calls)
    return blocks


def stop(reason: str, ended: Delta | Completion, *, context_ended: bool) -> tuple[str, str | None]:
    """`stop_reason` and `stop_sequence`.

    Args:
        reason: the finish reason as the OpenAI API has it.
        context_ended: there was room for fewer tokens than were asked for.
    """
    if reason == "tool_calls":
        return "tool_use", None
    if isinstance(ended.stop_reason, str):
        return "stop_sequence", ended.stop_reason
    if reason == "length":
        return ("model_context_window_exceeded" if context_ended else "max_tokens"), None
    return "end_turn", None


class BlockEvents:
    """The events that build the blocks of one choice, in order: at most one block is open at a time."""

    def __init__(self) -> None:
        self._num_blocks = 0
        self._open: type[ContentBlock] | None = None
        self._thoughts = hashlib.sha256()

    def feed(self, part: AnswerPart) -> Iterator[Event]:
        """Events for the next part."""
        match part.part:
            case ReasoningPart(text) if text:
                yield from self._begin(ThinkingBlock(thinking="", signature=""))
                self._thoughts.update(text.encode())
                for piece in text_pieces(text):
                    yield self._delta(ThinkingDelta(piece))
            case TextPart(text) if text:
                yield from self._begin(TextBlock(text=""))
                for piece in text_pieces(text):
                    yield self._delta(TextDelta(piece))
            case CallStart(name=name):
                yield from self._end()
                yield from self._begin(ToolUseBlock(id=_call_id(), name=name, input={}))
            case CallArguments(text=text) if text:
                for piece in text_pieces(text):
                    yield self._delta(InputJsonDelta(piece))

    def finish(self) -> Iterator[Event]:
        """Events after the last part; a choice without any has one empty block of text."""
        if not self._num_blocks:
            yield from self._begin(TextBlock(text=""))
        yield from self._end()

    def _begin(self, block: ContentBlock) -> Iterator[Event]:
        if self._open is type(block):
            return
        yield from self._end()
        self._open = type(block)
        self._num_blocks += 1
        yield BlockStart(self._num_blocks - 1, block)

    def _end(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open is ThinkingBlock:
            yield self._delta(SignatureDelta(self._thoughts.hexdigest()))
            self._thoughts = hashlib.sha256()
        yield BlockStop(self._num_blocks - 1)
        self._open = None

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta) -> BlockDelta:
        return BlockDelta(self._num_blocks - 1, delta)


def _signature(thoughts: str) -> str:
    """Clients give it back with the reasoning; here it says that the text is whole, and nothing is hidden in it."""
    return hashlib.sha256(thoughts.encode()).hexdigest()


def _call_id() -> str:
    return f"toolu_{secrets.token_hex(12)}"


def _arguments(text: str) -> dict[str, object]:
    """The arguments as an object; those of a call that broke off are left out."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object])
    except msgspec.DecodeError:
        return {}
