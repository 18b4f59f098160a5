"""The live view as server-sent events: one snapshot a second, made once for all who watch.

Nothing is kept for a viewer beside how many ends of requests it has been told of. So a slow one skips snapshots, and
one that takes nothing costs a connection and the frame that waits in it.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar, cast

import anyio
import anyio.lowlevel
import msgspec
from litestar.types import Receive, Scope, Send

from limelight.engine import Engine, EngineState
from limelight.http.disconnect import run_until_disconnect
from limelight.http.live.objects import History, Snapshot, engine_numbers
from limelight.http.sse import STREAM_HEADERS
from limelight.http.stream_body import StreamBody
from limelight.telemetry.request_view import RequestView
from limelight.telemetry.timeline import RequestTimeline

SECONDS = 1.0
"""Between two snapshots."""
MAX_ENDED = 256
"""Ends of requests in one go; of more, or of those that a slow viewer has missed, the newest are told."""
VIEWS_PER_TURN = 32
"""A millisecond of the event loop; then others have their turn."""
OBJECTS_PER_LINE = 32
"""Of a long list, which takes several lines of `data`: common readers take none above 64 KiB."""

T = TypeVar("T", bound=msgspec.Struct)


class LiveFeed:
    """What all viewers of one engine share."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = anyio.Lock()
        self._second = -1
        self._snapshot = b""
        self._ended_range = (0, 0)
        self._ended = b""

    @property
    def over(self) -> bool:
        """Whether nothing will change any more: the engine has ended, or is ending and no request is live."""
        state = self._engine.state
        if state is EngineState.DRAINING:
            return not self._engine.telemetry.live
        return state in (EngineState.STOPPED, EngineState.FAILED)

    @property
    def num_ended(self) -> int:
        """How many requests have ended so far: the place from which a viewer that comes now is told."""
        return self._engine.telemetry.num_ended

    def history(self) -> bytes:
        """The frame with the last minutes."""
        return _frame("history", History(_in_lines(self._engine.telemetry.heartbeat.samples)))

    async def news(self, seen: int) -> tuple[bytes, int]:
        """Frames for whoever has been told of the first `seen` ends, and how many it knows of then."""
        async with self._lock:
            second = int(asyncio.get_running_loop().time() / SECONDS)
            if second != self._second:
                self._snapshot = _frame("snapshot", await self._take())
                self._second = second
            first, last = max(seen, self.num_ended - MAX_ENDED), self.num_ended
            if (first, last) != self._ended_range:
                recent = list(islice(reversed(self._engine.telemetry.recent), last - first))
                views = await views_of(self._engine, recent[::-1])
                self._ended = b"".join([_frame("ended", view) for view in views])
                self._ended_range = (first, last)
            return self._ended + self._snapshot, last

    async def _take(self) -> Snapshot:
        telemetry = self._engine.telemetry
        samples = telemetry.heartbeat.samples
        return Snapshot(
            now=time.time(),
            engine=engine_numbers(self._engine),
            data=_in_lines(await views_of(self._engine, list(telemetry.live.values()))),
            sample=samples[-1] if samples else None,
        )


class FeedAnswer:
    """ASGI response: the feed, from now until the engine has ended or the viewer leaves."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await run_until_disconnect(receive, send, self._answer)

    async def _answer(self, send: Send) -> None:
        feed, body = self._feed, StreamBody(send)
        await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
        seen = feed.num_ended
        await body.write(feed.history())
        over = False
        while not over:
            over = feed.over
            frames, seen = await feed.news(seen)
            await body.write(frames, more=not over)
            if not over:
                await anyio.sleep(SECONDS - asyncio.get_running_loop().time() % SECONDS)


async def views_of(engine: Engine, timelines: Sequence[RequestTimeline]) -> list[RequestView]:
    """Views of many requests, without holding up the loop."""
    views = []
    for number, timeline in enumerate(timelines, start=1):
        views.append(engine.live_view.of(timeline))
        if number % VIEWS_PER_TURN == 0:
            await anyio.lowlevel.checkpoint()
    return views


def _frame(name: str, payload: msgspec.Struct) -> bytes:
    """One event. Encoded JSON has no line feeds but those of `_in_lines`."""
    data = msgspec.json.encode(payload).replace(b"\n", b"\ndata: ")
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _in_lines(objects: Iterable[T]) -> list[T]:
    """The objects as they will be encoded, with line feeds between them now and then."""
    encoded = [
        msgspec.Raw((b"" if number % OBJECTS_PER_LINE else b"\n") + msgspec.json.encode(item))
        for number, item in enumerate(objects, start=1)
    ]
    return cast("list[T]", encoded)
