"""`POST /v1/chat/completions`: a conversation in, an answer or a stream of chunks out."""

from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.generation import Completion, Delta, Generation
from limelight.http.errors import ErrorBody
from limelight.http.protocol.chat import (
    CHAT_DECODER,
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChunkChoice,
    ChunkDelta,
    chat_prompt,
    chat_sampling,
    choice_logprobs,
    echoed_text,
)
from limelight.http.protocol.logprobs import prompt_logprobs
from limelight.http.protocol.returned_tokens import ReturnedTokens
from limelight.http.protocol.usage import ChunkUsage, UsageMeter, usage_object
from limelight.http.serving import Serving, new_id, now
from limelight.http.sse import DONE, KEEP_ALIVE, failure_frames, frame, pieces, text_pieces
from limelight.http.stream_routes import resume
from limelight.http.streams import Event
from limelight.http.whole import WholeAnswer


def chat_route(serving: Serving) -> HTTPRouteHandler:
    """The route."""

    @post("/v1/chat/completions", status_code=200, before_request=resume(serving))
    async def chat_completions(request: Request[Any, Any, Any]) -> ASGIApp:
        chat, headers = await serving.read(request, CHAT_DECODER)
        serving.check_template(chat.chat_template)
        engine = serving.engine
        answer_id = new_id("chatcmpl")
        sampling = chat_sampling(chat, engine.default_sampling)
        generation = serving.request(
            request.scope["user"].name,
            answer_id,
            chat_prompt(chat),
            sampling,
            model=chat.model,
            priority=chat.priority,
            cache_salt=chat.cache_salt,
            truncation=chat.truncation,
            return_token_offsets=chat.return_token_offsets,
        )
        if chat.stream:
            return serving.streamed(request, [generation], ChatFrames(answer_id, chat), headers)

        def build(generations: list[Generation]) -> ChatCompletion:
            return chat_completion(answer_id, chat, generations[0])

        return WholeAnswer(engine, [generation], build, headers)

    return chat_completions


def chat_completion(answer_id: str, chat: ChatRequest, generation: Generation) -> ChatCompletion:
    """The whole response."""
    returned = ReturnedTokens(chat)
    echoed, scores = echoed_text(chat), generation.prompt_logprobs
    answer = ChatCompletion(
        id=answer_id,
        created=now(),
        model=chat.model,
        choices=[_choice(output, echoed, returned) for output in generation.outputs],
        usage=usage_object([generation.usage]),
        prompt_logprobs=msgspec.UNSET if scores is None else prompt_logprobs(scores),
    )
    return returned.with_prompt(answer, generation)


def _choice(output: Completion, echoed: str, returned: ReturnedTokens) -> ChatChoice:
    return ChatChoice(
        index=output.index,
        message=AnswerMessage(content=echoed + output.text),
        logprobs=choice_logprobs(output.logprobs, as_ids=returned.named_by_id),
        finish_reason=output.finish_reason.value,
        stop_reason=output.stop_reason,
        finish_details=output.finish_details,
        token_ids=returned.token_ids(output.token_ids),
    )


class ChatFrames:
    """Frames of one streamed chat.

    Per choice: one chunk with the role, chunks with text, and one final chunk with the reason and an empty delta. Then,
    if asked for, one chunk with the usage and no choices.
    """

    keep_alive = KEEP_ALIVE

    def __init__(self, answer_id: str, chat: ChatRequest) -> None:
        self._id = answer_id
        self._created = now()
        self._model = chat.model
        self._echoed = echoed_text(chat)
        self._started: set[int] = set()
        self._returned = ReturnedTokens(chat)
        self._meter = UsageMeter(chat)

    def opening(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return iter(())

    def frames(self, event: Event) -> Iterator[bytes]:
        """Frames for what is new."""
        for delta in event.deltas:
            usage = self._meter.count(event.number, len(event.stream.prompt_token_ids), delta)
            if not self._started:
                role = self._chunk((_role(delta.index),), usage)
                further = self._chunk((ChunkChoice(index=delta.index, delta=ChunkDelta()),), usage)
                yield from map(frame, self._returned.prompt_pieces(role, further, event.stream))
            elif delta.index not in self._started:
                yield frame(self._chunk((_role(delta.index),), usage))
            for choice in self._choices(delta):
                yield frame(self._chunk((choice,), usage))

    def ending(self) -> Iterator[bytes]:
        """The usage chunk, if asked for, and the end."""
        usage = self._meter.final()
        if usage is not None:
            yield frame(self._chunk((), usage))
        yield DONE

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return failure_frames(error)

    def _choices(self, delta: Delta) -> Iterator[ChunkChoice]:
        index = delta.index
        if index not in self._started:
            self._started.add(index)
            for part in text_pieces(self._echoed):
                yield ChunkChoice(index=index, delta=ChunkDelta(content=part))
        chunks = [
            ChunkChoice(
                index=index,
                delta=ChunkDelta(content=text),
                logprobs=choice_logprobs(logprobs, as_ids=self._returned.named_by_id),
            )
            for text, logprobs in pieces(delta)
        ]
        if delta.finish_reason is not None:
            end = ChunkChoice(
                index=index,
                delta=ChunkDelta(),
                finish_reason=delta.finish_reason.value,
                stop_reason=delta.stop_reason,
                finish_details=delta.finish_details,
            )
            chunks.append(end)
        yield from self._returned.spread(chunks, delta.token_ids, ChunkChoice(index=index, delta=ChunkDelta()))

    def _chunk(self, choices: tuple[ChunkChoice, ...], usage: ChunkUsage) -> ChatChunk:
        return ChatChunk(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)


def _role(index: int) -> ChunkChoice:
    return ChunkChoice(index=index, delta=ChunkDelta(role="assistant", content=""))
