"""The events of one streamed message."""

from collections.abc import Iterator

import msgspec

from limelight.generation import Delta, Usage
from limelight.http.anthropic.blocks import BlockEvents, stop
from limelight.http.conversation import PreparedConversation
from limelight.http.errors import ErrorBody
from limelight.http.protocol.anthropic.answer import (
    AnthropicError,
    Event,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopDelta,
    anthropic_error,
    message_usage,
)
from limelight.http.protocol.anthropic.request import MessagesRequest
from limelight.http.protocol.timings import asked_timings
from limelight.http.streams import Event as StreamEvent
from limelight.stream import Stream
from limelight.telemetry.timeline import RequestTimeline


def event_frame(event: Event) -> bytes:
    """One event, with its type as the frame's own name, too."""
    name: str = type(event).__struct_config__.tag  # type: ignore[assignment]
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


PING = event_frame(Ping())


class MessageFrames:
    """See `FrameWriter`. `message_start` waits for the first news: it tells how many tokens the prompt has."""

    keep_alive = PING

    def __init__(self, message_id: str, body: MessagesRequest, prepared: PreparedConversation) -> None:
        self._id = message_id
        self._model = body.model
        self._return_timings = body.return_timings
        self._timelines: dict[int, RequestTimeline] = {}
        self._max_tokens = prepared.sampling.max_tokens
        self._reader = prepared.reader()
        self._blocks = BlockEvents()
        self._started = False
        self._stop: StopDelta | None = None
        self._usage: MessageUsage | None = None

    def opening(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return iter(())

    def frames(self, event: StreamEvent) -> Iterator[bytes]:
        """Frames for what is new."""
        self._timelines[event.number] = event.stream.timeline
        if not self._started:
            self._started = True
            yield event_frame(MessageStart(self._message(event.stream)))
        for delta in event.deltas:
            for part in self._reader.feed(delta):
                yield from map(event_frame, self._blocks.feed(part))
            if delta.finish_reason is not None:
                self._end(delta)

    def ending(self) -> Iterator[bytes]:
        """The end of the last block and of the message."""
        assert self._stop is not None, "every choice has finished"
        assert self._usage is not None, "every choice has finished"
        yield from map(event_frame, self._blocks.finish())
        timings = asked_timings(self._return_timings, self._timelines.values())
        yield event_frame(MessageDelta(self._stop, self._usage, timings))
        yield event_frame(MessageStop())

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """See `FrameWriter`."""
        failed: AnthropicError = anthropic_error(error.error)
        yield event_frame(failed)

    def _end(self, delta: Delta) -> None:
        assert delta.usage is not None, "there is one choice"
        used = delta.usage.completion_tokens
        reason, sequence = stop(
            self._reader.finish_reason(delta),
            delta,
            context_ended=self._max_tokens is not None and used < self._max_tokens,
        )
        self._stop = StopDelta(reason, sequence)
        self._usage = message_usage(delta.usage)

    def _message(self, stream: Stream) -> Message:
        progress = stream.prompt_progress()
        usage = Usage(
            prompt_tokens=len(stream.prompt_token_ids),
            completion_tokens=0,
            cached_tokens=0 if progress is None else progress.cached_tokens,
        )
        return Message(
            id=self._id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=message_usage(usage),
        )
