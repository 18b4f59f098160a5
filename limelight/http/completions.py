"""`POST /v1/completions`: one or several plain prompts in, texts or a stream of chunks out."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.engine import Engine
from limelight.errors import InvalidRequest
from limelight.generation import Delta, Generation, TextPrompt, TokensPrompt
from limelight.http.errors import ErrorBody
from limelight.http.protocol.completions import (
    COMPLETION_DECODER,
    CompletionChoice,
    CompletionRequest,
    TextCompletion,
    TextOffsets,
    completion_prompts,
    completion_sampling,
)
from limelight.http.protocol.returned_tokens import ReturnedTokens
from limelight.http.protocol.usage import ChunkUsage, UsageMeter, usage_object
from limelight.http.serving import Serving, new_id, now
from limelight.http.sse import DONE, KEEP_ALIVE, failure_frames, frame, pieces, text_pieces
from limelight.http.stream_routes import resume
from limelight.http.streams import Event
from limelight.http.whole import WholeAnswer


def completions_route(serving: Serving) -> HTTPRouteHandler:
    """The route."""

    @post("/v1/completions", status_code=200, before_request=resume(serving))
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
        owner = request.scope["user"].name
        requests = [
            serving.request(
                owner,
                f"{answer_id}-{number}",
                prompt,
                sampling,
                model=completion.model,
                priority=completion.priority,
                cache_salt=completion.cache_salt,
                truncation=completion.truncation,
                return_token_offsets=completion.return_token_offsets,
            )
            for number, prompt in enumerate(prompts)
        ]
        echoed = _echoed(engine, prompts, completion)
        if completion.stream:
            writer = CompletionFrames(answer_id, completion, sampling.n, echoed)
            return serving.streamed(request, requests, writer, headers)

        def build(generations: list[Generation]) -> TextCompletion:
            return text_completion(answer_id, completion, generations, echoed)

        return WholeAnswer(engine, requests, build, headers)

    return completions


def _echoed(engine: Engine, prompts: Sequence[TextPrompt | TokensPrompt], completion: CompletionRequest) -> list[str]:
    """What each choice's text begins with: its prompt under `echo`, else nothing."""
    if not completion.echo:
        return [""] * len(prompts)
    skip = completion.skip_special_tokens is not False
    context = engine.model.capacity.max_model_len  # a longer prompt will be refused, so its text is not needed
    return [
        prompt.text
        if isinstance(prompt, TextPrompt)
        else engine.model.vocabulary.decode(prompt.token_ids[:context], skip_special_tokens=skip)
        for prompt in prompts
    ]


def text_completion(
    answer_id: str, completion: CompletionRequest, generations: Sequence[Generation], echoed: Sequence[str]
) -> TextCompletion:
    """The whole response; choices are numbered `prompt number x n + choice number`."""
    returned = ReturnedTokens(completion)
    choices = [
        returned.with_prompt(
            CompletionChoice(
                index=number * len(generation.outputs) + output.index,
                text=echoed[number] + output.text,
                logprobs=TextOffsets().legacy_logprobs(output.logprobs),
                finish_reason=output.finish_reason.value,
                stop_reason=output.stop_reason,
                finish_details=output.finish_details,
                token_ids=returned.token_ids(output.token_ids),
            ),
            generation,
        )
        for number, generation in enumerate(generations)
        for output in generation.outputs
    ]
    usage = usage_object([generation.usage for generation in generations])
    return TextCompletion(id=answer_id, created=now(), model=completion.model, choices=choices, usage=usage)


class CompletionFrames:
    """Frames of one streamed completion: text per choice, one final chunk per choice, then the usage if asked for."""

    keep_alive = KEEP_ALIVE

    def __init__(self, answer_id: str, completion: CompletionRequest, num_choices: int, echoed: Sequence[str]) -> None:
        self._id = answer_id
        self._created = now()
        self._model = completion.model
        self._num_choices = num_choices
        self._echoed = echoed
        self._started: set[int] = set()
        self._offsets: defaultdict[int, TextOffsets] = defaultdict(TextOffsets)
        self._returned = ReturnedTokens(completion)
        self._meter = UsageMeter(completion)

    def opening(self) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return iter(())

    def frames(self, event: Event) -> Iterator[bytes]:
        """Frames for what is new."""
        for delta in event.deltas:
            usage = self._meter.count(event.number, len(event.stream.prompt_token_ids), delta)
            for choice in self._choices(event, delta):
                yield self._frame([choice], usage)

    def ending(self) -> Iterator[bytes]:
        """The usage chunk, if asked for, and the end."""
        usage = self._meter.final()
        if usage is not None:
            yield self._frame([], usage)
        yield DONE

    def failure(self, error: ErrorBody) -> Iterator[bytes]:
        """See `FrameWriter`."""
        return failure_frames(error)

    def _choices(self, event: Event, delta: Delta) -> Iterator[CompletionChoice]:
        index = event.number * self._num_choices + delta.index
        chunks = list(self._new_text(index, delta))
        empty = CompletionChoice(index=index, text="")
        if index in self._started:
            yield from self._returned.spread(chunks, delta.token_ids, empty)
            return
        self._started.add(index)
        echo = [CompletionChoice(index=index, text=part) for part in text_pieces(self._echoed[event.number])]
        first, *rest = [*echo, *self._returned.spread(chunks, delta.token_ids, empty)] or [empty]
        yield from self._returned.prompt_pieces(first, empty, event.stream)
        yield from rest

    def _new_text(self, index: int, delta: Delta) -> Iterator[CompletionChoice]:
        for text, entries in pieces(delta):
            logprobs = self._offsets[index].legacy_logprobs(entries)
            yield CompletionChoice(index=index, text=text, logprobs=logprobs)
        if delta.finish_reason is not None:
            yield CompletionChoice(
                index=index,
                text="",
                finish_reason=delta.finish_reason.value,
                stop_reason=delta.stop_reason,
                finish_details=delta.finish_details,
            )

    def _frame(self, choices: list[CompletionChoice], usage: ChunkUsage) -> bytes:
        return frame(
            TextCompletion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)
        )
