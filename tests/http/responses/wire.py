"""What responses and their events must look like."""

import json
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

RESPONSES = "/v1/responses"
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}

_events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_response: TypeAdapter[Any] = TypeAdapter(Response)


def body(**fields: Any) -> dict[str, Any]:
    """A request."""
    return {"model": "scripted", "input": "hi", **fields}


def checked_response(response: dict[str, Any]) -> dict[str, Any]:
    """A response that the official client's types accept as it stands."""
    _response.validate_python(response)
    return response


def whole(response: httpx.Response) -> dict[str, Any]:
    """The response object of a successful answer."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return checked_response(response.json())


def events(content: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream, each of which must be one of the official client's, numbered without gaps."""
    assert b"\r" not in content
    *frames, rest = content.decode().split("\n\n")
    assert rest == ""
    found = []
    for frame in frames:
        if frame == ": keep-alive":
            continue
        lines = [line for line in frame.split("\n") if not line.startswith((":", "id:", "retry:"))]
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _events.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found if event["type"] in TERMINAL] == [found[-1]["type"]]
    check_order(found)
    return found


def streamed(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a successful stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(response.content)


def check_order(found: list[dict[str, Any]]) -> None:
    """Items come one after another, and each is announced, told in pieces, told whole, and part of the last event."""
    last = found[-1]["response"]
    names = [event["type"] for event in found]
    assert names[0] == "response.created"
    assert "response.in_progress" in names[:3]
    index = -1
    item_id: str | None = None
    told = ""
    for event in found:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert item_id is None, "the item before has ended"
            index += 1
            item_id, told = event["item"]["id"], ""
            assert event["item"].get("status") == "in_progress"
        if "output_index" in event:
            assert event["output_index"] == index
        if "item_id" in event:
            assert event["item_id"] == item_id
        if kind.endswith(".delta"):
            told += event["delta"]
        for name in ("text", "arguments", "input"):
            if name in event:
                assert event[name] == told, "what was told in pieces is told whole"
        if kind == "response.content_part.done":
            assert event["part"]["text"] == told
        if kind == "response.output_item.done":
            assert event["item"]["id"] == item_id
            assert event["item"] == last["output"][index]
            item_id = None
    assert index + 1 == len(last["output"])
    assert item_id is None


def plain(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without their ids, which are new every time."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]
