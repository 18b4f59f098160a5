"""Items of `input` as clients send them.

One struct for all kinds: which fields an item must have depends on its `type`, which is optional for messages. Every
item that we put into an output is accepted back, and so is the official client's `item.model_dump()`.
"""

import uuid
from collections.abc import Sequence

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.http.protocol.messages import Content, Part
from limelight.http.protocol.sizes import MAX_ENTRIES
from limelight.quoting import quoted

MESSAGE = "message"
FUNCTION_CALL = "function_call"
FUNCTION_OUTPUT = "function_call_output"
CUSTOM_CALL = "custom_tool_call"
CUSTOM_OUTPUT = "custom_tool_call_output"
REASONING = "reasoning"
REFERENCE = "item_reference"

_ID_PREFIXES = {
    MESSAGE: "msg",
    FUNCTION_CALL: "fc",
    FUNCTION_OUTPUT: "fco",
    CUSTOM_CALL: "ctc",
    CUSTOM_OUTPUT: "ctco",
    REASONING: "rs",
}
_NEEDED = {
    MESSAGE: ("role", "content"),
    FUNCTION_CALL: ("call_id", "name", "arguments"),
    FUNCTION_OUTPUT: ("call_id", "output"),
    CUSTOM_CALL: ("call_id", "name", "input"),
    CUSTOM_OUTPUT: ("call_id", "output"),
    REASONING: (),
    REFERENCE: ("id",),
}
_ROLES = ("user", "assistant", "system", "developer")


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item; `type` is None only in what has not been checked."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    status: str | None = None
    content: Content | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Content | None = None


ITEM_FIELDS = frozenset(Item.__struct_fields__) | {
    "phase",
    "caller",
    "namespace",
    "async",
    "async_",
    "created_by",
    "parsed_arguments",
}
"""Every name that an item may have; those beside the struct's say nothing that the model could read."""


def new_item_id(kind: str) -> str:
    """A fresh id of an item of this type."""
    return f"{_ID_PREFIXES[kind]}_{uuid.uuid4().hex}"


def checked_items(given: str | Sequence[Item]) -> tuple[Item, ...]:
    """The items with their types and ids filled in; a string is one message of the user.

    Raises:
        InvalidRequest: an item lacks what its type needs, there are none or too many; `param` names it.
        UnsupportedField: an item of a hosted tool, or reasoning that only its maker can read.
    """
    if isinstance(given, str):
        return (
            Item(type=MESSAGE, id=new_item_id(MESSAGE), role="user", content=[Part(type="input_text", text=given)]),
        )
    num_entries = sum(map(_num_entries, given))
    if num_entries > MAX_ENTRIES:
        raise InvalidRequest(
            f"input has {num_entries} items and content parts, at most {MAX_ENTRIES} are allowed", param="input"
        )
    return tuple(_checked(item, f"input[{index}]") for index, item in enumerate(given))


def _num_entries(item: Item) -> int:
    lists = (item.content, item.summary, item.output)
    return 1 + sum(len(entries) for entries in lists if isinstance(entries, list))


def _checked(item: Item, where: str) -> Item:
    kind = item.type or (REFERENCE if item.id and item.role is None else MESSAGE)
    if kind not in _NEEDED:
        raise UnsupportedField(
            f"{where}.type is {quoted(kind)}; this server has no hosted tools, so send {', '.join(_NEEDED)}",
            param=f"{where}.type",
        )
    for name in _NEEDED[kind]:
        if getattr(item, name) is None:
            raise InvalidRequest(f"{where}.{name} is missing, an item of type {kind} needs it", param=f"{where}.{name}")
    if kind == MESSAGE and item.role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role is {quoted(item.role)}, must be one of {', '.join(_ROLES)}",
            param=f"{where}.role",
        )
    if kind == REASONING and item.encrypted_content and not (item.content or item.summary):
        raise UnsupportedField(
            f"{where}.encrypted_content cannot be read here; send the reasoning as text, or leave the item out",
            param=f"{where}.encrypted_content",
        )
    if kind == REFERENCE:
        return msgspec.structs.replace(item, type=kind)
    return msgspec.structs.replace(item, type=kind, id=item.id or new_item_id(kind))
