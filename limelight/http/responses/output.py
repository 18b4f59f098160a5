"""The output of a response as it grows: parts of the answer in, items and their events out."""

import uuid
from collections.abc import Iterator

from limelight.generation import Delta, TokenLogprob
from limelight.http.conversation import AnswerPart
from limelight.http.protocol.chat import LogprobEntry, choice_logprobs
from limelight.http.protocol.responses.events import Event
from limelight.http.protocol.responses.items import CUSTOM_CALL, FUNCTION_CALL, MESSAGE, REASONING, new_item_id
from limelight.http.protocol.responses.objects import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    ReasoningItem,
)
from limelight.http.protocol.responses.tools import custom_arguments
from limelight.http.responses.open_items import OpenCustomCall, OpenFunctionCall, OpenItem, OpenMessage, OpenReasoning
from limelight.http.sse import pieces, text_pieces
from limelight.parsing.parts import CallArguments, CallStart, ReasoningPart, TextPart


class Output:
    """Items of one response. However the parts are cut, the same items come out; only their ids are new.

    Args:
        custom: names of the custom tools among those that the model may call.
        with_logprobs: whether the client asked for log-probabilities.
    """

    def __init__(self, custom: frozenset[str] = frozenset(), *, with_logprobs: bool = False) -> None:
        self._custom = custom
        self._with_logprobs = with_logprobs
        self._early_logprobs: list[LogprobEntry] = []
        self._open: OpenItem | None = None
        self._done: list[OutputItem] = []

    @property
    def items(self) -> tuple[OutputItem, ...]:
        """All items, the last one perhaps in progress."""
        return (*self._done, self._open.item("in_progress")) if self._open else tuple(self._done)

    def take(self, answer: AnswerPart) -> Iterator[Event]:
        """Events for a part."""
        part = answer.part
        if isinstance(part, TextPart):
            yield from self._text(part.text, answer.logprobs)
        elif isinstance(part, ReasoningPart):
            yield from self._reasoning(part.text)
        elif isinstance(part, CallStart):
            yield from self._call(part)
        else:
            yield from self._arguments(part)

    def close(self, status: ItemStatus) -> Iterator[Event]:
        """End with the last item in `status`. An answer without any has an empty message."""
        if self._open is None and not self._done:
            yield from self._message()
        yield from self._end(status)

    def _text(self, text: str, logprobs: tuple[TokenLogprob, ...] | None) -> Iterator[Event]:
        if not text and not isinstance(self._open, OpenMessage):
            if not self.items:  # else they belong to what stands around the items
                self._early_logprobs += _entries(logprobs)
            return
        message = self._open
        if not isinstance(message, OpenMessage):
            yield from self._end("completed")
            yield from self._message()
            message = self._open
            assert isinstance(message, OpenMessage)
        for piece, entries in pieces(Delta(text=text, logprobs=logprobs)):
            yield from message.extend(piece, _entries(entries))

    def _message(self) -> Iterator[Event]:
        early, self._early_logprobs = self._early_logprobs, []
        logprobs = early if self._with_logprobs else None
        yield from self._begin(OpenMessage(len(self._done), new_item_id(MESSAGE), logprobs))

    def _reasoning(self, text: str) -> Iterator[Event]:
        reasoning = self._open
        if not isinstance(reasoning, OpenReasoning):
            yield from self._end("completed")
            reasoning = OpenReasoning(len(self._done), new_item_id(REASONING))
            yield from self._begin(reasoning)
        for piece in text_pieces(text):
            yield from reasoning.extend(piece)

    def _call(self, start: CallStart) -> Iterator[Event]:
        yield from self._end("completed")
        index, call_id = len(self._done), f"call_{uuid.uuid4().hex}"
        if start.name in self._custom:
            yield from self._begin(OpenCustomCall(index, new_item_id(CUSTOM_CALL), call_id, start.name))
        else:
            yield from self._begin(OpenFunctionCall(index, new_item_id(FUNCTION_CALL), call_id, start.name))

    def _arguments(self, arguments: CallArguments) -> Iterator[Event]:
        call = self._open
        assert isinstance(call, OpenFunctionCall | OpenCustomCall), "arguments belong to the call that began last"
        for piece in text_pieces(arguments.text):
            yield from call.extend(piece)

    def _begin(self, item: OpenItem) -> Iterator[Event]:
        self._early_logprobs.clear()
        self._open = item
        yield from item.begin()

    def _end(self, status: ItemStatus) -> Iterator[Event]:
        if self._open is not None:
            item, self._open = self._open, None
            self._done.append(item.item(status))
            yield from item.end(status)


def replayed(items: tuple[OutputItem, ...]) -> Iterator[Event]:
    """Events of items that are whole, each text in as few pieces as there can be."""
    for index, item in enumerate(items):
        if isinstance(item, OutputMessage):
            yield from _replayed_message(index, item)
            continue
        opened, text = _opened(index, item)
        yield from opened.begin()
        for piece in text_pieces(text):
            yield from opened.extend(piece)
        yield from opened.end(item.status)


def _replayed_message(index: int, item: OutputMessage) -> Iterator[Event]:
    part = item.content[0]
    logprobs = part.logprobs if isinstance(part.logprobs, list) else None
    message = OpenMessage(index, item.id, None if logprobs is None else [])
    yield from message.begin()
    left = logprobs or []
    for piece in text_pieces(part.text):
        yield from message.extend(piece, left)
        left = []
    yield from message.end(item.status)


def _opened(
    index: int, item: ReasoningItem | FunctionCallItem | CustomCallItem
) -> tuple[OpenReasoning | OpenFunctionCall | OpenCustomCall, str]:
    if isinstance(item, ReasoningItem):
        return OpenReasoning(index, item.id), item.content[0].text
    if isinstance(item, FunctionCallItem):
        return OpenFunctionCall(index, item.id, item.call_id, item.name), item.arguments
    return OpenCustomCall(index, item.id, item.call_id, item.name), custom_arguments(item.input)


def _entries(logprobs: tuple[TokenLogprob, ...] | None) -> list[LogprobEntry]:
    wire = choice_logprobs(logprobs)
    return [] if wire is None else wire.content
