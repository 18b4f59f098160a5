"""`POST /v1/chat/completions`: a conversation in, an answer or a stream of chunks out."""

from collections.abc import Iterator
from typing import Any

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
    ChunkChoice,
    ChunkDelta,
    chat_prompt,
    chat_sampling,
    choice_logprobs,
    stop_reason,
)
from limelight.http.protocol.sampling import GenerationFields
from limelight.http.protocol.usage import ChunkUsage, UsageMeter, usage_object
from limelight.http.serving import Serving, new_id, now
from limelight.http.sse import DONE, KEEP_ALIVE, failure_frames, frame, pieces
from limelight.http.stream_routes import resume
from limelight.http.streams import Event
from limelight.http.whole import WholeAnswer


def chat_route(serving: Serving) -> HTTPRouteHandler:
    """The route."""

    @post("/v1/chat/completions", status_code=200, before_request=resume(serving))
    async def chat_completions(request: Request[Any, Any, Any]) -> ASGIApp:
        chat, headers = await serving.read(request, CHAT_DECODER)
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
        )
        if chat.stream:
            return serving.streamed(request, [generation], ChatFrames(answer_id, chat), headers)

        def build(generations: list[Generation]) -> ChatCompletion:
            return chat_completion(answer_id, chat.model, generations[0])

        return WholeAnswer(engine, [generation], build, headers)

    return chat_completions


def chat_completion(answer_id: str, model: str, generation: Generation) -> ChatCompletion:
    """The whole response."""
    return ChatCompletion(
        id=answer_id,
        created=now(),
        model=model,
        choices=[_choice(output) for output in generation.outputs],
        usage=usage_object([generation.usage]),
    )


def _choice(output: Completion) -> ChatChoice:
    return ChatChoice(
        index=output.index,
        message=AnswerMessage(content=output.text),
        logprobs=choice_logprobs(output.logprobs),
        finish_reason=output.finish_reason.value,
        stop_reason=stop_reason(output),
    )


class ChatFrames:
    """Frames of one streamed chat.

    Per choice: one chunk with the role, chunks with text, and one final chunk with the reason and an empty delta. Then,
    if asked for, one chunk with the usage and no choices.
    """

    keep_alive = KEEP_ALIVE

    def __init__(self, answer_id: str, fields: GenerationFields) -> None:
        self._id = answer_id
        self._created = now()
        self._model = fields.model
        self._started: set[int] = set()
        self._meter = UsageMeter(fields)

    def opening(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return iter(())

    def frames(self, event: Event) -> Iterator[bytes]:
        """Frames for what is new."""
        for delta in event.deltas:
            usage = self._meter.count(event.number, len(event.stream.prompt_token_ids), delta)
            for choice in self._choices(delta):
                yield self._frame((choice,), usage)

    def ending(self) -> Iterator[bytes]:
        """The usage chunk, if asked for, and the end."""
        usage = self._meter.final()
        if usage is not None:
            yield self._frame((), usage)
        yield DONE

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return failure_frames(error)

    def _choices(self, delta: Delta) -> Iterator[ChunkChoice]:
        index = delta.index
        if index not in self._started:
            self._started.add(index)
            yield ChunkChoice(index=index, delta=ChunkDelta(role="assistant", content=""))
        for text, logprobs in pieces(delta):
            yield ChunkChoice(index=index, delta=ChunkDelta(content=text), logprobs=choice_logprobs(logprobs))
        if delta.finish_reason is not None:
            yield ChunkChoice(
                index=index,
                delta=ChunkDelta(),
                finish_reason=delta.finish_reason.value,
                stop_reason=stop_reason(delta),
            )

    def _frame(self, choices: tuple[ChunkChoice, ...], usage: ChunkUsage) -> bytes:
        return frame(ChatChunk(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage))
