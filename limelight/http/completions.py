"""`POST /v1/completions`: one or several plain prompts in, texts or a stream of chunks out."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.errors import InvalidRequest
from limelight.generation import Delta, Generation
from limelight.http.echo import Echo
from limelight.http.errors import ErrorBody
from limelight.http.exchange import GENERATES, exchange_of
from limelight.http.protocol.completions import (
    COMPLETION_DECODER,
    CompletionChoice,
    CompletionRequest,
    TextCompletion,
    completion_prompts,
    completion_sampling,
)
from limelight.http.protocol.logprobs import LegacyWriter, prompt_logprobs
from limelight.http.protocol.returned_tokens import ReturnedTokens
from limelight.http.protocol.timings import AnswerTimings, asked_timings
from limelight.http.protocol.usage import ChunkUsage, UsageMeter, usage_object
from limelight.http.serving import Serving, new_id, now
from limelight.http.sse import DONE, KEEP_ALIVE, failure_frames, frame, pieces
from limelight.http.stream_routes import resume
from limelight.http.streams import Event
from limelight.http.whole import WholeAnswer
from limelight.telemetry.timeline import RequestTimeline


def completions_route(serving: Serving) -> HTTPRouteHandler:
    """The route."""

    @post("/v1/completions", status_code=200, opt=GENERATES, before_request=resume(serving))
    async def completions(request: Request[Any, Any, Any]) -> ASGIApp:
        completion, headers = await serving.read(request, COMPLETION_DECODER)
        engine = serving.engine
        answer_id = new_id("cmpl")
        sampling = completion_sampling(completion, engine.default_sampling)
        prompts = completion_prompts(completion)
        if len(prompts) > engine.config.max_num_requests:
            raise InvalidRequest(
                f"prompt has {len(prompts)} prompts, this server takes {engine.config.max_num_requests} at once",
                param="prompt",
            )
        requests = [
            serving.request(
                request,
                f"{answer_id}-{number}",
                prompt,
                sampling,
                model=completion.model,
                priority=completion.priority,
                cache_salt=completion.cache_salt,
                limits=completion,
                truncation=completion.truncation,
                return_token_offsets=completion.return_token_offsets,
            )
            for number, prompt in enumerate(prompts)
        ]
        echo = Echo(engine, prompts, completion)
        if completion.stream:
            writer = CompletionFrames(answer_id, completion, sampling.n, echo)
            return serving.streamed(request, requests, writer, headers)

        def build(generations: list[Generation]) -> TextCompletion:
            timings = asked_timings(completion.return_timings, exchange_of(request.scope).timelines)
            return text_completion(answer_id, completion, generations, echo, timings)

        return WholeAnswer(engine, requests, build, headers)

    return completions


def text_completion(
    answer_id: str,
    completion: CompletionRequest,
    generations: Sequence[Generation],
    echo: Echo,
    timings: AnswerTimings,
) -> TextCompletion:
    """The whole response; choices are numbered `prompt number x n + choice number`."""
    choices = [
        choice
        for number, generation in enumerate(generations)
        for choice in _choices_of(number, generation, completion, echo)
    ]
    usage = usage_object([generation.usage for generation in generations])
    return TextCompletion(
        id=answer_id, created=now(), model=completion.model, choices=choices, usage=usage, timings=timings
    )


def _choices_of(
    number: int, generation: Generation, completion: CompletionRequest, echo: Echo
) -> Iterator[CompletionChoice]:
    """Those of prompt `number`."""
    returned, echoed, outputs = ReturnedTokens(completion), echo.delta(number, generation), generation.outputs
    scores = None if completion.prompt_logprobs is None else generation.prompt_logprobs
    for output in outputs:
        entries = output.logprobs
        if entries is not None:
            entries = (*(echoed.logprobs or ()), *entries)
        choice = CompletionChoice(
            index=number * len(outputs) + output.index,
            text=echoed.text + output.text,
            logprobs=echo.writer(number, generation).write(entries),
            finish_reason=output.finish_reason.value,
            stop_reason=output.stop_reason,
            finish_details=output.finish_details,
            token_ids=returned.token_ids(output.token_ids),
            prompt_logprobs=msgspec.UNSET if scores is None else prompt_logprobs(scores),
        )
        yield returned.with_prompt(choice, generation)


class CompletionFrames:
    """Frames of one streamed completion: text per choice, one final chunk per choice, then the usage if asked for."""

    keep_alive = KEEP_ALIVE

    def __init__(self, answer_id: str, completion: CompletionRequest, num_choices: int, echo: Echo) -> None:
        self._id = answer_id
        self._created = now()
        self._model = completion.model
        self._num_choices = num_choices
        self._echo = echo
        self._logprobs: dict[int, LegacyWriter] = {}  # of the choices that have begun
        self._returned = ReturnedTokens(completion)
        self._meter = UsageMeter(completion)
        self._return_timings = completion.return_timings
        self._timelines: dict[int, RequestTimeline] = {}

    def opening(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return iter(())

    def frames(self, event: Event) -> Iterator[bytes]:
        """Frames for what is new."""
        self._timelines[event.number] = event.stream.timeline
        for delta in event.deltas:
            usage = self._meter.count(event.number, len(event.stream.prompt_token_ids), delta)
            for choice in self._choices(event, delta):
                yield self._frame([choice], usage)

    def ending(self) -> Iterator[bytes]:
        """The chunk with usage and timings, if asked for, and the end."""
        usage = self._meter.final()
        timings = asked_timings(self._return_timings, self._timelines.values())
        if usage is not msgspec.UNSET or timings is not msgspec.UNSET:
            yield self._frame([], usage, timings)
        yield DONE

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return failure_frames(error)

    def _choices(self, event: Event, delta: Delta) -> Iterator[CompletionChoice]:
        index = event.number * self._num_choices + delta.index
        empty = CompletionChoice(index=index, text="")
        if index in self._logprobs:
            yield from self._returned.spread(list(self._new_text(index, delta)), delta.token_ids, empty)
            return
        self._logprobs[index] = self._echo.writer(event.number, event.stream)
        echo = list(self._new_text(index, self._echo.delta(event.number, event.stream)))
        chunks = list(self._new_text(index, delta))
        first, *rest = [*echo, *self._returned.spread(chunks, delta.token_ids, empty)] or [empty]
        yield from self._returned.prompt_pieces(first, empty, event.stream)
        yield from rest

    def _new_text(self, index: int, delta: Delta) -> Iterator[CompletionChoice]:
        for text, entries in pieces(delta):
            yield CompletionChoice(index=index, text=text, logprobs=self._logprobs[index].write(entries))
        if delta.finish_reason is not None:
            yield CompletionChoice(
                index=index,
                text="",
                finish_reason=delta.finish_reason.value,
                stop_reason=delta.stop_reason,
                finish_details=delta.finish_details,
            )

    def _frame(
        self, choices: list[CompletionChoice], usage: ChunkUsage, timings: AnswerTimings = msgspec.UNSET
    ) -> bytes:
        return frame(
            TextCompletion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage,
                timings=timings,
            )
        )
