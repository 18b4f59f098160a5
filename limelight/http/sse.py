"""Server-sent events: the frames, and the ASGI response that writes them while the engine generates.

Frames end with two line feeds, never carry a carriage return, and stay well under 64 KiB, the line limit of common
readers. Nothing here compresses; `no-cache` and `x-accel-buffering` ask proxies to leave the stream alone.
"""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio
import msgspec
from litestar.types import Receive, Scope, Send

from limelight.engine import Engine
from limelight.errors import LimelightError
from limelight.generation import AlternativeToken, Delta, GenerationRequest, TokenLogprob
from limelight.http.disconnect import run_until_disconnect
from limelight.http.errors import ErrorBody, error_body, log_bug, log_failure
from limelight.http.exchange import exchange_of
from limelight.http.prompt_progress import ProgressComments, progress_line
from limelight.http.settings import HttpSettings
from limelight.http.stream_body import StreamBody
from limelight.http.streams import Event, Events, open_streams, read_together
from limelight.stream import Stream

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment. Readers that split at blank lines drop it; glued to the next event it would hide that one from them."""

MAX_PIECE_CHARACTERS = 4096
"""At most six bytes each in JSON: 24 KiB a line."""
MAX_PIECE_LOGPROB_BYTES = 24 * 1024
_ENTRY_BYTES = 96
"""JSON around one token of a log-probability entry: names, number, brackets."""

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def frame(payload: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


class FrameWriter(Protocol):
    """Turns what the engine says into the frames of one endpoint. One instance per response.

    Each part is one whole frame. Exactly one of `ending` and `failure` is asked for, once, as the last.

    Attributes:
        keep_alive: what goes out when there has been nothing to say for long: `KEEP_ALIVE`, or an event of the
            endpoint's own.
    """

    keep_alive: bytes

    def opening(self) -> Iterator[bytes]:
        """Frames that go out with the status line, before anything is known of the answer."""
        ...

    def frames(self, event: Event) -> Iterator[bytes]:
        """Frames for an event."""
        ...

    def ending(self) -> Iterator[bytes]:
        """Frames after every choice has finished, the endpoint's terminal one included."""
        ...

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """Frames for an error after the status line, the endpoint's terminal one included."""
        ...


def failure_frames(error: ErrorBody) -> Iterator[bytes]:
    """What chats and completions end with after an error."""
    yield frame(error)
    yield DONE


class StreamedAnswer:
    """ASGI response: a stream of frames with exactly one ending, also after an error.

    The status line waits for the first event, at most `header_wait_seconds`: what fails before that is an ordinary
    error response. After that an error is a frame of its own.

    Args:
        progress_seconds: how often to tell of a change of progress before the first event; None: never.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[GenerationRequest],
        writer: FrameWriter,
        settings: HttpSettings,
        headers: Mapping[str, str],
        progress_seconds: float | None = None,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._writer = writer
        self._settings = settings
        self._progress_seconds = progress_seconds
        self._headers = [*STREAM_HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request.

        Raises:
            LimelightError: the requests failed before the status line was sent.
        """
        await run_until_disconnect(receive, send, partial(self._answer, scope))

    async def _answer(self, scope: Scope, send: Send) -> None:
        async with (
            open_streams(self._engine, self._requests, exchange_of(scope)) as streams,
            read_together(streams) as events,
        ):
            await self._write_events(events, streams, scope, send)

    async def _write_events(self, events: Events, streams: Sequence[Stream], scope: Scope, send: Send) -> None:
        event: Event | None = None
        with anyio.move_on_after(self._settings.header_wait_seconds) as wait:
            event = await events.next()
        body = StreamBody(send)
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        async with body.kept_alive(self._settings.keep_alive_seconds, self._writer.keep_alive):
            try:
                opening = b"".join(self._writer.opening())
                if wait.cancelled_caught or opening:
                    # A middleware that holds the headers back until it sees a body lets them go now.
                    await body.write(opening)
                if self._progress_seconds is not None:
                    progress = ProgressComments(body, partial(progress_line, streams), b"\n", self._progress_seconds)
                    event = event or await progress.during(events.next)
                    await progress.tell()
                elif wait.cancelled_caught:
                    event = await events.next()
                while event is not None:
                    if frames := b"".join(self._writer.frames(event)):
                        await body.write(frames)
                    event = await events.next()
                ending = b"".join(self._writer.ending())
            except LimelightError as error:
                log_failure(error, scope)
                exchange_of(scope).broke_off(error)
                ending = b"".join(self._writer.failure(error_body(error, scope)))
            except Exception as error:  # noqa: BLE001 - a bug; only a frame can still say so
                log_bug("request %s failed after its headers", error, scope)
                bug = LimelightError("The server failed while it wrote this answer")
                exchange_of(scope).broke_off(bug)
                ending = b"".join(self._writer.failure(error_body(bug, scope)))
        await body.write(ending, more=False)


def pieces(delta: Delta) -> Iterator[tuple[str, tuple[TokenLogprob, ...] | None]]:
    """The text and log-probabilities of `delta`, cut so that each part fits a frame; nothing if there is neither.

    Joined, the parts are the delta. A part's log-probabilities belong to its text; at a cut inside a character the
    character goes with its last token.
    """
    text = delta.text
    if not delta.logprobs:
        for part in text_pieces(text):
            yield part, None if delta.logprobs is None else ()
        return
    groups = list(_groups(delta.logprobs))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for group in groups[:-1]:
        covered = sum(len(decoder.decode(entry.bytes)) for entry in group)
        yield text[:covered], group
        text = text[covered:]
    head, *tail = list(text_pieces(text)) or [""]
    yield head, groups[-1]
    for part in tail:
        yield part, ()


def text_pieces(text: str) -> Iterator[str]:
    """`text` in parts that fit a frame; nothing for an empty text."""
    for start in range(0, len(text), MAX_PIECE_CHARACTERS):
        yield text[start : start + MAX_PIECE_CHARACTERS]


def _groups(entries: Sequence[TokenLogprob]) -> Iterator[tuple[TokenLogprob, ...]]:
    """Consecutive entries whose JSON stays under the limit together; a single larger one stands alone."""
    group: list[TokenLogprob] = []
    size = 0
    for entry in entries:
        weight = _weight(entry)
        if group and size + weight > MAX_PIECE_LOGPROB_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(entry)
        size += weight
    if group:
        yield tuple(group)


def _weight(entry: TokenLogprob) -> int:
    """Upper bound of the entry's JSON: a byte takes four characters as a number and up to six inside a string."""
    tokens: tuple[TokenLogprob | AlternativeToken, ...] = (entry, *entry.top, *entry.asked)
    return sum(_ENTRY_BYTES + 4 * len(token.bytes) + 6 * len(token.token) for token in tokens)
