"""The events of a stream, by the names of the API. `sequence_number` rises by one from 0."""

import msgspec

from limelight.http.protocol.chat import LogprobEntry
from limelight.http.protocol.responses.objects import OutputItem, OutputPart, ResponseObject, ResponseStatus


class Event(msgspec.Struct, kw_only=True):
    """Any event. The number is given when it is sent."""

    sequence_number: int = -1


class ResponseEvent(Event, kw_only=True):
    """An event about the response; it has as many types as the response has states."""

    type: str
    response: ResponseObject


class ItemEvent(Event, kw_only=True):
    """An event about an item."""

    output_index: int


class ItemAdded(ItemEvent, kw_only=True, tag_field="type", tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class ItemDone(ItemEvent, kw_only=True, tag_field="type", tag="response.output_item.done"):
    """An item is whole."""

    item: OutputItem


class ContentEvent(ItemEvent, kw_only=True):
    """An event about what is inside an item."""

    item_id: str


class PartEvent(ContentEvent, kw_only=True):
    """An event about a part; our items have one part."""

    content_index: int = 0


class PartAdded(PartEvent, kw_only=True, tag_field="type", tag="response.content_part.added"):
    """A part begins."""

    part: OutputPart


class PartDone(PartEvent, kw_only=True, tag_field="type", tag="response.content_part.done"):
    """A part is whole."""

    part: OutputPart


class TextDelta(PartEvent, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    """More text; `logprobs` is empty unless asked for."""

    delta: str
    logprobs: list[LogprobEntry]


class TextDone(PartEvent, kw_only=True, tag_field="type", tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[LogprobEntry]


class ReasoningDelta(PartEvent, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningDone(PartEvent, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    """The whole reasoning."""

    text: str


class ArgumentsDelta(ContentEvent, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(ContentEvent, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"):
    """The whole arguments."""

    name: str
    arguments: str


class CustomInputDelta(ContentEvent, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.delta"):
    """The text for a custom tool: all of it, as it is known when the call is whole."""

    delta: str


class CustomInputDone(ContentEvent, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.done"):
    """The whole text for a custom tool."""

    input: str


TERMINAL: dict[ResponseStatus, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.incomplete",
}
"""The last event by the response's status; the API has none of its own for a response that was cancelled."""


def event_type(event: Event) -> str:
    """The name on the `event:` line."""
    return event.type if isinstance(event, ResponseEvent) else str(type(event).__struct_config__.tag)


def event_frame(event: Event) -> bytes:
    """The event as a frame. Deltas stay under 64 KiB; what repeats whole texts is as long as they are."""
    return b"event: %b\ndata: %b\n\n" % (event_type(event).encode(), msgspec.json.encode(event))
