"""Output items while they are written: each tells its own events, from `begin` over `extend` to `end`."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from limelight.http.protocol.chat import LogprobEntry
from limelight.http.protocol.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    Event,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from limelight.http.protocol.responses.objects import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from limelight.http.protocol.responses.tools import custom_input


class OpenItem(Protocol):
    """An item that is being written. `begin` comes first and `end` last, each once."""

    def begin(self) -> Iterator[Event]:
        """The item is there."""
        ...

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """The item is whole, or broke off."""
        ...

    def item(self, status: ItemStatus) -> OutputItem:
        """The item with all that has been written."""
        ...


class OpenMessage:
    """Text. Log-probabilities that came before the first text belong to it.

    Args:
        logprobs: None: the client did not ask for any.
    """

    def __init__(self, index: int, item_id: str, logprobs: list[LogprobEntry] | None) -> None:
        self._index = index
        self._id = item_id
        self._texts: list[str] = []
        self._logprobs = logprobs

    def begin(self) -> Iterator[Event]:
        """See `OpenItem`."""
        yield ItemAdded(output_index=self._index, item=OutputMessage(id=self._id, status="in_progress"))
        part = OutputText(text="") if self._logprobs is None else OutputText(text="", logprobs=[])
        yield PartAdded(output_index=self._index, item_id=self._id, part=part)

    def extend(self, text: str, logprobs: Sequence[LogprobEntry]) -> Iterator[Event]:
        """More text."""
        self._texts.append(text)
        if self._logprobs is not None:
            self._logprobs += logprobs
        yield TextDelta(output_index=self._index, item_id=self._id, delta=text, logprobs=list(logprobs))

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """See `OpenItem`."""
        part = self._part()
        yield TextDone(output_index=self._index, item_id=self._id, text=part.text, logprobs=list(self._logprobs or ()))
        yield PartDone(output_index=self._index, item_id=self._id, part=part)
        yield ItemDone(output_index=self._index, item=self.item(status))

    def item(self, status: ItemStatus) -> OutputMessage:
        """See `OpenItem`."""
        return OutputMessage(id=self._id, status=status, content=(self._part(),))

    def _part(self) -> OutputText:
        text = "".join(self._texts)
        return OutputText(text=text) if self._logprobs is None else OutputText(text=text, logprobs=self._logprobs)


class OpenReasoning:
    """Reasoning."""

    def __init__(self, index: int, item_id: str) -> None:
        self._index = index
        self._id = item_id
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        """See `OpenItem`."""
        yield ItemAdded(output_index=self._index, item=ReasoningItem(id=self._id, status="in_progress"))
        yield PartAdded(output_index=self._index, item_id=self._id, part=ReasoningText(text=""))

    def extend(self, text: str) -> Iterator[Event]:
        """More reasoning."""
        self._texts.append(text)
        yield ReasoningDelta(output_index=self._index, item_id=self._id, delta=text)

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """See `OpenItem`."""
        item = self.item(status)
        part = item.content[0]
        yield ReasoningDone(output_index=self._index, item_id=self._id, text=part.text)
        yield PartDone(output_index=self._index, item_id=self._id, part=part)
        yield ItemDone(output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> ReasoningItem:
        """See `OpenItem`."""
        return ReasoningItem(id=self._id, status=status, content=(ReasoningText(text="".join(self._texts)),))


class OpenFunctionCall:
    """A call of a function."""

    def __init__(self, index: int, item_id: str, call_id: str, name: str) -> None:
        self._index = index
        self._id = item_id
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def begin(self) -> Iterator[Event]:
        """See `OpenItem`."""
        yield ItemAdded(output_index=self._index, item=self.item("in_progress"))

    def extend(self, arguments: str) -> Iterator[Event]:
        """More of the arguments."""
        self._arguments.append(arguments)
        yield ArgumentsDelta(output_index=self._index, item_id=self._id, delta=arguments)

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """See `OpenItem`."""
        item = self.item(status)
        yield ArgumentsDone(output_index=self._index, item_id=self._id, name=self._name, arguments=item.arguments)
        yield ItemDone(output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> FunctionCallItem:
        """See `OpenItem`."""
        return FunctionCallItem(
            id=self._id, call_id=self._call_id, name=self._name, arguments="".join(self._arguments), status=status
        )


class OpenCustomCall:
    """A call of a custom tool. Its text lies inside JSON, and is told when that is whole."""

    def __init__(self, index: int, item_id: str, call_id: str, name: str) -> None:
        self._index = index
        self._id = item_id
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def begin(self) -> Iterator[Event]:
        """See `OpenItem`."""
        yield ItemAdded(
            output_index=self._index,
            item=CustomCallItem(id=self._id, call_id=self._call_id, name=self._name, status="in_progress"),
        )

    def extend(self, arguments: str) -> Iterator[Event]:
        """More of the arguments of the function that stands for the tool."""
        self._arguments.append(arguments)
        return iter(())

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """See `OpenItem`."""
        item = self.item(status)
        yield CustomInputDelta(output_index=self._index, item_id=self._id, delta=item.input)
        yield CustomInputDone(output_index=self._index, item_id=self._id, input=item.input)
        yield ItemDone(output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> CustomCallItem:
        """See `OpenItem`."""
        text = custom_input("".join(self._arguments))
        return CustomCallItem(id=self._id, call_id=self._call_id, name=self._name, input=text, status=status)
