"""Several engine requests behind one HTTP request: opened together, read as one, ended together."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from limelight.engine import Engine
from limelight.errors import LimelightError
from limelight.generation import Delta, Generation, GenerationRequest
from limelight.http.exchange import Exchange
from limelight.stream import Stream


class Event:
    """What arrived in one go: deltas of the request at place `number`."""

    __slots__ = ("deltas", "number", "stream")

    def __init__(self, number: int, stream: Stream, deltas: list[Delta]) -> None:
        self.number = number
        self.stream = stream
        self.deltas = deltas


class Events(Protocol):
    """Where events are read from."""

    async def next(self) -> Event | None:
        """The next event, None after the last one. Cancelling the wait loses nothing.

        Raises:
            LimelightError: one of the requests failed.
        """
        ...


@asynccontextmanager
async def open_streams(
    engine: Engine, requests: Sequence[GenerationRequest], exchange: Exchange
) -> AsyncIterator[list[Stream]]:
    """Admit all requests behind `exchange`; leaving the block aborts those that have not finished.

    Raises:
        LimelightError: one was refused; those before it are aborted.
    """
    exchange.reached_engine = True
    async with AsyncExitStack() as stack:
        streams = []
        for request in requests:
            stream = await stack.enter_async_context(engine.open(request))
            exchange.attach(stream.timeline)
            streams.append(stream)
        yield streams


async def collect(streams: Sequence[Stream]) -> list[Generation]:
    """The whole results, in order. The first failure ends the wait for all.

    Raises:
        LimelightError: one of the requests failed.
    """
    if len(streams) == 1:
        return [await streams[0].result()]
    results: dict[int, Generation] = {}
    failures: list[LimelightError] = []
    async with anyio.create_task_group() as tasks:

        async def wait(number: int, stream: Stream) -> None:
            try:
                results[number] = await stream.result()
            except LimelightError as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        for number, stream in enumerate(streams):
            tasks.start_soon(wait, number, stream)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(streams))]


@asynccontextmanager
async def read_together(streams: Sequence[Stream]) -> AsyncIterator[Events]:
    """Read all streams as one, each event as soon as it is there.

    Raises:
        LimelightError: what the body of the block raised, as itself and not inside an exception group.
    """
    if len(streams) == 1:
        yield _One(streams[0])
        return
    failure: LimelightError | None = None
    send, receive = anyio.create_memory_object_stream[Event | LimelightError](0)
    # The tasks end before the way between them closes: who is cancelled must not find it broken instead.
    async with send, receive, anyio.create_task_group() as tasks:
        for number, stream in enumerate(streams):
            tasks.start_soon(_forward, number, stream, send)
        try:
            yield _Several(receive, len(streams))
        except LimelightError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _One:
    """The usual case, without a task in between."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def next(self) -> Event | None:
        deltas = await self._stream.next_deltas()
        return Event(0, self._stream, deltas) if deltas else None


class _Several:
    """Events handed over by one task per stream; an event without deltas says that its stream has ended.

    The first event is given when every stream has had one, so that a request that is refused is refused before any of
    them is answered. Who waits no longer cancels the wait, and the next one gets what there is.
    """

    __slots__ = ("_kept", "_open", "_receive", "_unheard")

    def __init__(self, receive: ObjectReceiveStream[Event | LimelightError], num_streams: int) -> None:
        self._receive = receive
        self._open = num_streams
        self._unheard = set(range(num_streams))
        self._kept: deque[Event] = deque()

    async def next(self) -> Event | None:
        try:
            while self._unheard:
                await self._take()
        finally:
            self._unheard.clear()
        while not self._kept and self._open:
            await self._take()
        return self._kept.popleft() if self._kept else None

    async def _take(self) -> None:
        event = await self._receive.receive()
        if isinstance(event, LimelightError):
            raise event
        self._unheard.discard(event.number)
        if event.deltas:
            self._kept.append(event)
        else:
            self._open -= 1


async def _forward(number: int, stream: Stream, send: ObjectSendStream[Event | LimelightError]) -> None:
    """Hand over one event at a time: while nobody takes it, the stream merges what follows."""
    deltas: list[Delta] | None = None
    while deltas is None or deltas:
        try:
            deltas = await stream.next_deltas()
        except LimelightError as error:
            await send.send(error)
            return
        await send.send(Event(number, stream, deltas))
