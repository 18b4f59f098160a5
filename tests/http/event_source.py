"""A reader of event streams by the letter of the WHATWG HTML standard, 9.2.6, and how it comes back after a break."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx


@dataclasses.dataclass(frozen=True)
class Event:
    """One dispatched event; `last_event_id` is what the reader would send if the connection broke after it."""

    name: str
    data: str
    last_event_id: str


class EventSourceParser:
    """Bytes in, events out, however the bytes are cut.

    Attributes:
        comments: the comment lines, without their colon.
        retry: milliseconds until a new connection, as the stream last said.
    """

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.retry: int | None = None
        self._rest = b""
        self._first = True
        self._event = ""
        self._data: list[str] = []
        self._id_buffer = ""
        self._last_event_id = ""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now."""
        self._rest += data
        events = []
        while (line := self._next_line()) is not None:
            if self._first:
                line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
            if (event := self._take(line.decode("utf-8", "replace"))) is not None:
                events.append(event)
        return events

    def _next_line(self) -> bytes | None:
        ends = [place for place in (self._rest.find(b"\n"), self._rest.find(b"\r")) if place >= 0]
        if not ends or (self._rest[min(ends) :] == b"\r"):  # a line feed may follow
            return None
        end = min(ends)
        line, length = self._rest[:end], 2 if self._rest[end : end + 2] == b"\r\n" else 1
        self._rest = self._rest[end + length :]
        return line

    def _take(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            self.comments.append(line[1:])
            return None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._event = value
        elif field == "data":
            self._data.append(value)
        elif field == "id" and "\0" not in value:
            self._id_buffer = value
        elif field == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value)
        return None

    def _dispatch(self) -> Event | None:
        self._last_event_id = self._id_buffer
        name, data = self._event, self._data
        self._event, self._data = "", []
        return Event(name or "message", "\n".join(data), self._last_event_id) if data else None


async def read_events(response: httpx.Response, parser: EventSourceParser | None = None) -> AsyncIterator[Event]:
    """The events of a response, each as soon as it is whole."""
    parser = parser or EventSourceParser()
    async for data in response.aiter_raw():
        for event in parser.feed(data):
            yield event


async def some_events(
    client: httpx.AsyncClient, limit: int | None, method: str, url: str, **options: Any
) -> list[Event]:
    """The first `limit` events of a stream, all of them for None; then the connection is cut. Empty after a 204."""
    events: list[Event] = []
    async with client.stream(method, url, **options) as response:
        if response.status_code == 204:
            return events
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        async for event in read_events(response):
            events.append(event)
            if len(events) == limit:
                break
    return events


async def cut_and_resumed(client: httpx.AsyncClient, every: int, again: str, url: str, **options: Any) -> list[Event]:
    """A stream that is cut after every `every` events and taken up again until it is over.

    Args:
        again: "POST", to the same URL without the body; "GET", by the stream's own URL; or "after", the same by number.
    """
    headers = {"x-limelight-resumable": "1", **options.pop("headers", {})}
    events = part = await some_events(client, every, "POST", url, headers=headers, **options)
    while len(part) == every:
        last = events[-1].last_event_id
        stream_id, _, number = last.partition(":")
        if again == "after":
            part = await some_events(client, every, "GET", f"/v1/streams/{stream_id}?after={number}")
        elif again == "GET":
            part = await some_events(client, every, "GET", f"/v1/streams/{stream_id}", headers={"last-event-id": last})
        else:
            part = await some_events(client, every, "POST", url, headers={"last-event-id": last})
        events = [*events, *part]
    return events
