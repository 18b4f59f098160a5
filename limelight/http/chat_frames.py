"""The chunks of a streamed chat."""

from collections.abc import Callable, Iterator

import msgspec

from limelight.generation import Delta, TokenLogprob
from limelight.http.answer_reader import AnswerPart, AnswerReader
from limelight.http.conversation import PreparedConversation
from limelight.http.errors import ErrorBody
from limelight.http.protocol.chat import ChatRequest, ChoiceLogprobs, choice_logprobs, echoed_text
from limelight.http.protocol.chat_answer import ChatChunk, ChunkChoice, ChunkDelta, ChunkFunction, ChunkToolCall
from limelight.http.protocol.returned_tokens import ReturnedTokens
from limelight.http.protocol.timings import AnswerTimings, asked_timings
from limelight.http.protocol.usage import ChunkUsage, UsageMeter
from limelight.http.serving import now
from limelight.http.settings import ReasoningField
from limelight.http.sse import DONE, KEEP_ALIVE, failure_frames, frame, pieces, text_pieces
from limelight.http.streams import Event
from limelight.parsing.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from limelight.telemetry.timeline import RequestTimeline


class ChatFrames:
    """Frames of one streamed chat.

    Per choice: one chunk with the role, chunks with reasoning, text and pieces of calls, and one final chunk with the
    reason and an empty delta. Then, if asked for, one chunk with the usage and no choices.
    """

    keep_alive = KEEP_ALIVE

    def __init__(
        self, answer_id: str, chat: ChatRequest, prepared: PreparedConversation, reasoning_field: ReasoningField
    ) -> None:
        self._id = answer_id
        self._created = now()
        self._chat = chat
        self._prepared = prepared
        self._reasoning_field = reasoning_field
        self._echoed = echoed_text(chat)
        self._readers: dict[int, AnswerReader] = {}
        self._returned = ReturnedTokens(chat)
        self._meter = UsageMeter(chat)
        self._timelines: dict[int, RequestTimeline] = {}

    def opening(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return iter(())

    def frames(self, event: Event) -> Iterator[bytes]:
        """Frames for what is new."""
        self._timelines[event.number] = event.stream.timeline
        for delta in event.deltas:
            usage = self._meter.count(event.number, len(event.stream.prompt_token_ids), delta)
            if not self._readers:
                role = self._chunk((_role(delta.index),), usage)
                further = self._chunk((ChunkChoice(index=delta.index, delta=ChunkDelta()),), usage)
                yield from map(frame, self._returned.prompt_pieces(role, further, event.stream))
            elif delta.index not in self._readers:
                yield frame(self._chunk((_role(delta.index),), usage))
            for choice in self._choices(delta):
                yield frame(self._chunk((choice,), usage))

    def ending(self) -> Iterator[bytes]:
        """The chunk with usage and timings, if asked for, and the end."""
        usage = self._meter.final()
        timings = asked_timings(self._chat.return_timings, self._timelines.values())
        if usage is not msgspec.UNSET or timings is not msgspec.UNSET:
            yield frame(self._chunk((), usage, timings))
        yield DONE

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return failure_frames(error)

    def _choices(self, delta: Delta) -> Iterator[ChunkChoice]:
        index = delta.index
        if index not in self._readers:
            self._readers[index] = self._prepared.reader()
            for part in text_pieces(self._echoed):
                yield ChunkChoice(index=index, delta=ChunkDelta(content=part))
        reader = self._readers[index]
        chunks = [chunk for part in reader.feed(delta) for chunk in self._part(index, part)]
        if delta.finish_reason is not None:
            end = ChunkChoice(
                index=index,
                delta=ChunkDelta(),
                finish_reason=wire_finish_reason(self._chat, reader.finish_reason(delta)),
                stop_reason=delta.stop_reason,
                finish_details=delta.finish_details,
            )
            chunks.append(end)
        yield from self._returned.spread(chunks, delta.token_ids, ChunkChoice(index=index, delta=ChunkDelta()))

    def _part(self, index: int, part: AnswerPart) -> Iterator[ChunkChoice]:
        """The part in as many chunks as it takes."""
        text, wrap = self._wrapped(part.part)
        if isinstance(part.part, CallStart):
            yield ChunkChoice(index=index, delta=wrap(""))
            wrap = _empty
        for piece, logprobs in pieces(Delta(text=text, logprobs=part.logprobs)):
            yield ChunkChoice(index=index, delta=wrap(piece), logprobs=self._logprobs(logprobs))

    def _logprobs(self, entries: tuple[TokenLogprob, ...] | None) -> ChoiceLogprobs | None:
        return choice_logprobs(entries, as_ids=self._returned.named_by_id)

    def _wrapped(self, part: Part) -> tuple[str, Callable[[str], ChunkDelta]]:
        """The text of a part, and how pieces of it stand in a delta."""
        match part:
            case TextPart(text):
                return text, lambda piece: ChunkDelta(content=piece)
            case ReasoningPart(text):
                if self._reasoning_field == "reasoning":
                    return text, lambda piece: ChunkDelta(reasoning=piece)
                return text, lambda piece: ChunkDelta(reasoning_content=piece)
            case CallStart(call, name):
                return "", lambda piece: self._call_delta(
                    call, ChunkFunction(piece, name), self._prepared.new_call_id()
                )
            case CallArguments(call, text):
                return text, lambda piece: self._call_delta(call, ChunkFunction(piece), None)

    def _call_delta(self, call: int, function: ChunkFunction, call_id: str | None) -> ChunkDelta:
        if self._chat.functions is not None:
            return ChunkDelta(function_call=function)
        kind = None if call_id is None else "function"
        return ChunkDelta(tool_calls=(ChunkToolCall(index=call, id=call_id, type=kind, function=function),))

    def _chunk(
        self, choices: tuple[ChunkChoice, ...], usage: ChunkUsage, timings: AnswerTimings = msgspec.UNSET
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._chat.model,
            choices=choices,
            usage=usage,
            timings=timings,
        )


def wire_finish_reason(chat: ChatRequest, reason: str) -> str:
    """The first form of tools has a word of its own."""
    return "function_call" if reason == "tool_calls" and chat.functions is not None else reason


def _role(index: int) -> ChunkChoice:
    return ChunkChoice(index=index, delta=ChunkDelta(role="assistant", content=""))


def _empty(piece: str) -> ChunkDelta:
    """For log-probabilities without a text."""
    return ChunkDelta()
