"""`POST /v1/messages`, whole and streamed, and `/v1/messages/count_tokens`: the Messages API of Anthropic."""

import secrets
from functools import partial
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.generation import Generation
from limelight.http.anthropic.blocks import content_blocks, stop
from limelight.http.anthropic.frames import MessageFrames
from limelight.http.conversation import PreparedConversation, prepare
from limelight.http.errors import ERROR_SHAPE, ERROR_STATUSES
from limelight.http.exchange import GENERATES, exchange_of
from limelight.http.protocol.anthropic.answer import (
    OVERLOADED_STATUS,
    Message,
    TokenCount,
    anthropic_error,
    message_usage,
)
from limelight.http.protocol.anthropic.conversation import conversation, sampling
from limelight.http.protocol.anthropic.request import COUNT_TOKENS_DECODER, MESSAGES_DECODER
from limelight.http.protocol.timings import AnswerTimings, asked_timings
from limelight.http.rate_limits import ANTHROPIC_NAMES
from limelight.http.serving import Serving
from limelight.http.stream_routes import resume
from limelight.http.whole import WholeAnswer

ANTHROPIC_ERRORS = {ERROR_SHAPE: anthropic_error, ERROR_STATUSES: {"overloaded_error": OVERLOADED_STATUS}}


def message_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """The routes."""

    @post(
        "/v1/messages",
        status_code=200,
        opt=ANTHROPIC_ERRORS | GENERATES | {ANTHROPIC_NAMES: True},
        before_request=resume(serving),
    )
    async def messages(request: Request[Any, Any, Any]) -> ASGIApp:
        body, ignored = await serving.decode(request, MESSAGES_DECODER)
        serving.check_model(body.model, request)
        headers = serving.report_ignored(ignored)
        engine = serving.engine
        message_id = f"msg_{secrets.token_hex(12)}"
        asked = await serving.work(request, partial(conversation, body))
        prepared = prepare(engine, asked, sampling(body, engine.default_sampling))
        generation = serving.request(
            request,
            message_id,
            prepared.prompt,
            prepared.sampling,
            model=body.model,
            reasoning=prepared.reasoning,
        )
        if body.stream:
            return serving.streamed(request, [generation], MessageFrames(message_id, body, prepared), headers)

        def build(generations: list[Generation]) -> Message:
            timings = asked_timings(body.return_timings, exchange_of(request.scope).timelines)
            return whole_message(message_id, body.model, prepared, generations[0], timings)

        return WholeAnswer(engine, [generation], build, headers)

    @post("/v1/messages/count_tokens", status_code=200, opt=ANTHROPIC_ERRORS)
    async def count_tokens(request: Request[Any, Any, Any]) -> Response[TokenCount]:
        body, ignored = await serving.decode(request, COUNT_TOKENS_DECODER)
        serving.check_model(body.model, request)
        engine = serving.engine
        asked = await serving.work(request, partial(conversation, body))
        prepared = prepare(engine, asked, engine.default_sampling)
        token_ids = await engine.tokenize(prepared.prompt)
        return Response(TokenCount(len(token_ids)), headers=serving.report_ignored(ignored))

    return [messages, count_tokens]


def whole_message(
    message_id: str, model: str, prepared: PreparedConversation, generation: Generation, timings: AnswerTimings
) -> Message:
    """The whole response."""
    output = generation.outputs[0]
    parts = prepared.whole(output)
    limit = prepared.sampling.max_tokens
    reason, sequence = stop(
        parts.finish_reason,
        output,
        context_ended=limit is not None and generation.usage.completion_tokens < limit,
    )
    return Message(
        id=message_id,
        model=model,
        content=content_blocks(parts),
        stop_reason=reason,
        stop_sequence=sequence,
        usage=message_usage(generation.usage),
        timings=timings,
    )
