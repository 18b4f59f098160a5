"""`GET /v1/responses/{id}/input_items`: a response's input in the shape that the API gives items."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.http.protocol.messages import Content, Part
from limelight.http.protocol.responses.items import CUSTOM_CALL, MESSAGE, REASONING, Item
from limelight.http.protocol.responses.objects import InputItemList
from limelight.quoting import quoted

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


def input_item_page(items: Sequence[Item], query: Mapping[str, str]) -> InputItemList:
    """The page that `query` asks for (`limit`, `order`, `after`); the newest item is first unless `order` is asc.

    Raises:
        InvalidRequest: a parameter is out of range, or `after` is none of the items; `param` names it.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {quoted(order)}, must be asc or desc", param="order")
    ordered = list(items) if order == "asc" else list(items)[::-1]
    limit, start = _limit(query.get("limit")), _start(ordered, query.get("after"))
    page = [listed_item(item) for item in ordered[start : start + limit]]
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else "",
        last_id=page[-1]["id"] if page else "",
        has_more=start + limit < len(ordered),
    )


def listed_item(item: Item) -> dict[str, Any]:
    """The item with what the API's own items always have."""
    listed: dict[str, Any] = msgspec.to_builtins(item)
    if item.type == MESSAGE:
        listed["content"] = _content(item.content, item.role == "assistant")
    elif item.type == REASONING:
        listed.setdefault("summary", [])
    if item.type not in (REASONING, CUSTOM_CALL):
        listed["status"] = item.status or "completed"
    return listed


def _content(content: Content | None, from_assistant: bool) -> list[dict[str, Any]]:
    parts = [Part(type="text", text=content)] if isinstance(content, str) else content or []
    return [_part(part, from_assistant) for part in parts]


def _part(part: Part, from_assistant: bool) -> dict[str, Any]:
    if part.refusal is not None:
        return {"type": "refusal", "refusal": part.refusal}
    if from_assistant:
        return {"type": "output_text", "text": part.text, "annotations": []}
    return {"type": "input_text", "text": part.text}


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    limit = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit is {quoted(text)}, must be an integer from 1 to {MAX_LIMIT}", param="limit")
    return limit


def _start(items: Sequence[Item], after: str | None) -> int:
    if after is None:
        return 0
    for index, item in enumerate(items):
        if item.id == after:
            return index + 1
    raise InvalidRequest(f"after is {quoted(after)}, which is none of the input items", param="after")
