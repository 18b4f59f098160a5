"""The recorded streams of one application: found by ids that cannot be guessed, within a bound of bytes and of time."""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from limelight.engine import Engine
from limelight.errors import Overloaded, RequestCancelled, StreamGone, StreamNotFound
from limelight.generation import GenerationRequest
from limelight.http.exchange import exchange_of
from limelight.http.frame_log import FrameLog
from limelight.http.recording import Recording
from limelight.http.settings import HttpSettings
from limelight.http.sse import FrameWriter

STREAM_OVERHEAD_BYTES = 4096
"""What keeping a stream costs beside its frames."""
FIRST_BYTES = 64 * 1024
"""What must be free for a new stream."""


class StreamIds:
    """Ids with 144 random bits and a signature that binds them to their owner.

    So it needs no memory to tell an id that was given out to somebody, and whose stream is gone, from any other one.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, owner: str) -> str:
        """A new id for `owner`: 48 letters of URL-safe base64."""
        nonce = secrets.token_bytes(18)
        return _text(nonce) + self._signature(_text(nonce), owner)

    def belongs_to(self, stream_id: str, owner: str) -> bool:
        """Whether this very object made the id for `owner`."""
        nonce, signature = stream_id[:24], stream_id[24:]
        return hmac.compare_digest(signature.encode(), self._signature(nonce, owner).encode())

    def _signature(self, nonce: str, owner: str) -> str:
        return _text(hmac.digest(self._key, f"{nonce}{owner}".encode(), hashlib.sha256)[:18])


class Recordings:
    """Recordings by id, from their beginning until some time after their end.

    Over `resume_memory_bytes` streams that have ended go, the one that ended first before all others; if that is not
    enough, the longest running one loses its oldest frames, and no new one begins.
    """

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._ids = StreamIds()
        self._recordings: dict[str, Recording] = {}
        self._ended: dict[str, float] = {}  # when each one goes, the first one first
        self._expiry: asyncio.TimerHandle | None = None
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._recordings)

    def open(
        self,
        owner: str,
        requests: Sequence[GenerationRequest],
        writer: FrameWriter,
        scope: Any,
        grace_seconds: float,
    ) -> tuple[str, Recording]:
        """A new recording, which has begun, and its id.

        Raises:
            Overloaded: running streams fill the memory.
            EngineNotRunning, EngineFailed: there is nothing that could serve it.
        """
        if not self._make_room(FIRST_BYTES):
            raise Overloaded(
                f"Resumable streams that are running fill the {self._settings.resume_memory_bytes} bytes that are for "
                "them (the server's option --resume-memory); try again later, or without x-limelight-resumable"
            )
        stream_id = self._ids.make(owner)
        recording = Recording(
            FrameLog(self._settings.resume_stream_bytes, partial(self._grown, stream_id)),
            scope,
            header_wait_seconds=self._settings.header_wait_seconds,
            grace_seconds=grace_seconds,
            ended=partial(self._has_ended, stream_id),
        )
        recording.start(self._engine, requests, writer, exchange_of(scope))
        self._recordings[stream_id] = recording
        self.num_bytes += STREAM_OVERHEAD_BYTES
        return stream_id, recording

    def find(self, owner: str, stream_id: str) -> Recording:
        """The recording of `owner` with this id.

        Raises:
            StreamNotFound: there never was one, or it is somebody else's.
            StreamGone: it is not kept any more.
        """
        if not self._ids.belongs_to(stream_id, owner):
            raise StreamNotFound("There is no stream with this id for this API key since the server started")
        recording = self._recordings.get(stream_id)
        if recording is None:
            seconds = self._settings.resume_keep_seconds
            raise StreamGone(
                f"The stream is not kept any more: {seconds:g} seconds after their end, or earlier where memory runs "
                "out, streams are dropped; send the request anew"
            )
        return recording

    def delete(self, owner: str, stream_id: str) -> None:
        """Abort a running stream, whose readers find that as its end; forget one that has ended.

        Raises:
            StreamNotFound, StreamGone: as `find`.
        """
        recording = self.find(owner, stream_id)
        if recording.log.closed:
            self.forget(stream_id)
        else:
            recording.cancel(RequestCancelled("The stream was aborted by DELETE"))

    def forget(self, stream_id: str) -> None:
        """Drop a recording and its frames; whoever still reads them loses the rest. Aborts it if it is running.

        Idempotent: it may have made room for others before the one who asked for it leaves.
        """
        recording = self._recordings.pop(stream_id, None)
        if recording is None:
            return
        self._ended.pop(stream_id, None)
        self.num_bytes -= recording.log.num_bytes + STREAM_OVERHEAD_BYTES
        recording.log.drop_all()
        recording.cancel()

    def _make_room(self, num_bytes: int) -> bool:
        """Forget ended streams until `num_bytes` more fit; returns whether they do."""
        limit = self._settings.resume_memory_bytes - num_bytes
        while self.num_bytes > limit and self._ended:
            self.forget(next(iter(self._ended)))
        return self.num_bytes <= limit

    def _grown(self, stream_id: str, num_bytes: int) -> None:
        if stream_id not in self._recordings:
            return  # forgotten
        self.num_bytes += num_bytes
        if num_bytes > 0 and not self._make_room(0):
            largest = max((recording.log for recording in self._recordings.values()), key=lambda log: log.num_bytes)
            largest.drop_oldest(largest.num_bytes // 8)

    def _has_ended(self, stream_id: str) -> None:
        if stream_id in self._recordings:
            self._ended[stream_id] = asyncio.get_running_loop().time() + self._settings.resume_keep_seconds
            self._schedule()

    def _schedule(self) -> None:
        if self._expiry is None and self._ended:
            when = next(iter(self._ended.values()))
            self._expiry = asyncio.get_running_loop().call_at(when, self._expire)

    def _expire(self) -> None:
        """Drop what is due, but nothing from under a reader."""
        self._expiry = None
        now = asyncio.get_running_loop().time()
        due = [stream_id for stream_id, when in self._ended.items() if when <= now]
        for stream_id in due:
            if self._recordings[stream_id].num_readers:
                del self._ended[stream_id]
                self._ended[stream_id] = now + self._settings.resume_keep_seconds
            else:
                self.forget(stream_id)
        self._schedule()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()
