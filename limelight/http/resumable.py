"""The ASGI responses of recorded streams: every frame has an id, and whoever lost the connection goes on after it.

Framed as the WHATWG HTML standard (server-sent events) says. Common clients do not read it in full, so no frame is
without data, `retry` stands inside the first one, and a keep-alive is a comment line directly before the next frame:
a blank line after it would end an event that has no data.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from litestar.types import Receive, Scope, Send

from limelight.errors import StreamGone
from limelight.generation import GenerationRequest
from limelight.http.disconnect import run_until_disconnect
from limelight.http.errors import ErrorObject, error_body
from limelight.http.exchange import exchange_of
from limelight.http.prompt_progress import ProgressComments
from limelight.http.recording import Recording
from limelight.http.recordings import Recordings
from limelight.http.settings import HttpSettings
from limelight.http.sse import DONE, STREAM_HEADERS, FrameWriter
from limelight.http.stream_body import StreamBody
from limelight.http.stream_options import STREAM_HEADER

KEEP_ALIVE_LINE = b": keep-alive\n"
RETRY_MILLISECONDS = 1000
"""How long a reader shall wait before it connects again."""


class LostFrames(msgspec.Struct, frozen=True):
    """The last event of a reader that fell behind what is kept: an error to clients of every endpoint."""

    error: ErrorObject
    type: str = "error"


class RecordedAnswer:
    """ASGI response: the frames of a recording from `number` on, as they come."""

    def __init__(
        self,
        stream_id: str,
        recording: Recording,
        number: int,
        settings: HttpSettings,
        headers: Mapping[str, str],
        progress_seconds: float | None,
    ) -> None:
        self._stream_id = stream_id.encode()
        self._recording = recording
        self._number = number
        self._settings = settings
        self._headers = [
            *STREAM_HEADERS,
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ]
        self._progress_seconds = progress_seconds
        self.begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. `begun` tells from then on whether the status line went out.

        Raises:
            LimelightError: the requests behind the recording failed before it had begun.
        """
        with self._recording.reader(exchange_of(scope).delivery):
            await run_until_disconnect(receive, send, partial(self._answer, scope))

    async def _answer(self, scope: Scope, send: Send) -> None:
        await self._recording.begun()
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        self.begun = True
        body = StreamBody(send)
        async with body.kept_alive(self._settings.keep_alive_seconds, KEEP_ALIVE_LINE):
            ending = await self._write_frames(body, scope)
        await body.write(ending, more=False)

    async def _write_frames(self, body: StreamBody, scope: Scope) -> bytes:
        """Write all frames; returns what the body ends with."""
        log, number = self._recording.log, self._number
        await body.write(b"")  # a middleware that holds the headers back until it sees a body lets them go now
        progress = None
        if self._progress_seconds is not None and not self._recording.answering:
            progress = ProgressComments(body, self._recording.progress_line, b"", self._progress_seconds)
        try:
            while True:
                read = partial(log.read, number)
                frames = await (progress.during(read) if progress else read())
                if not frames:
                    break
                if progress is not None and self._recording.answering:
                    await progress.tell()
                    progress = None
                await body.write(self._with_ids(number, frames))
                number += len(frames)
        except StreamGone as error:
            exchange_of(scope).broke_off(error)
            lost = LostFrames(error_body(error, scope).error)
            return b"event: error\ndata: " + msgspec.json.encode(lost) + b"\n\n" + DONE
        if self._recording.error is not None:
            exchange_of(scope).broke_off(self._recording.error)
        return b""

    def _with_ids(self, number: int, frames: Sequence[bytes]) -> bytes:
        retry = b"retry: %d\n" % RETRY_MILLISECONDS if number == self._number else b""
        first = b"id: %b:%d\n%b%b" % (self._stream_id, number, retry, frames[0])
        rest = [
            b"id: %b:%d\n%b" % (self._stream_id, place, frame) for place, frame in enumerate(frames[1:], number + 1)
        ]
        return b"".join((first, *rest))


class ResumableAnswer:
    """ASGI response: a new recorded stream, from its first frame on."""

    def __init__(
        self,
        recordings: Recordings,
        owner: str,
        requests: Sequence[GenerationRequest],
        writer: FrameWriter,
        settings: HttpSettings,
        headers: Mapping[str, str],
        grace_seconds: float,
        progress_seconds: float | None,
    ) -> None:
        self._recordings = recordings
        self._owner = owner
        self._requests = requests
        self._writer = writer
        self._settings = settings
        self._headers = headers
        self._grace_seconds = grace_seconds
        self._progress_seconds = progress_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request.

        Raises:
            LimelightError: the requests failed before the status line was sent.
        """
        stream_id, recording = self._recordings.open(
            self._owner, self._requests, self._writer, scope, self._grace_seconds
        )
        headers = {STREAM_HEADER: stream_id, **self._headers}
        answer = RecordedAnswer(stream_id, recording, 0, self._settings, headers, self._progress_seconds)
        try:
            await answer(scope, receive, send)
        finally:
            if not answer.begun:  # nobody knows its id
                self._recordings.forget(stream_id)
