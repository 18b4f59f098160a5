"""Frames of a streamed response: its events, numbered."""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from limelight.http.errors import ErrorBody
from limelight.http.protocol.responses.events import TERMINAL, ResponseEvent, event_frame
from limelight.http.protocol.responses.events import Event as ResponsesEvent
from limelight.http.protocol.responses.objects import ResponseObject
from limelight.http.responses.output import replayed
from limelight.http.responses.run import ResponseRun
from limelight.http.sse import KEEP_ALIVE
from limelight.http.streams import Event
from limelight.telemetry.timeline import RequestTimeline


class ResponseFrames:
    """Writes one response. The last frame carries the whole of it; nothing follows, no `[DONE]` either.

    Args:
        ended: called with the response before its last frame goes out.
    """

    keep_alive = KEEP_ALIVE

    def __init__(self, run: ResponseRun, ended: Callable[[ResponseObject], None]) -> None:
        self._run = run
        self._ended = ended
        self._timelines: dict[int, RequestTimeline] = {}
        self._next = 0

    def opening(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return self._numbered(self._run.opening())

    def frames(self, event: Event) -> Iterator[bytes]:
        """See `FrameWriter`."""
        self._timelines[event.number] = event.stream.timeline
        for delta in event.deltas:
            yield from self._numbered(self._run.feed(delta))

    def ending(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return self._last(self._run.finish(self._timelines.values()))

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return self._last(self._run.fail(error.error))

    def _last(self, events: Iterable[ResponsesEvent]) -> Iterator[bytes]:
        frames = list(self._numbered(events))
        self._ended(self._run.response)
        yield from frames

    def _numbered(self, events: Iterable[ResponsesEvent]) -> Iterator[bytes]:
        for event in events:
            event.sequence_number = self._next
            self._next += 1
            yield event_frame(event)


def replayed_frames(response: ResponseObject) -> Iterator[bytes]:
    """The events of a response that has ended, as if it were written now."""
    empty = msgspec.structs.replace(
        response, status="in_progress", output=(), usage=None, completed_at=None, error=None, incomplete_details=None
    )
    events = (
        ResponseEvent(type="response.created", response=empty),
        ResponseEvent(type="response.in_progress", response=empty),
        *replayed(response.output),
        ResponseEvent(type=TERMINAL[response.status], response=response),
    )
    for number, event in enumerate(events):
        event.sequence_number = number
        yield event_frame(event)
