"""`POST /v1/messages`: the Messages API of Anthropic, whole and streamed."""

import secrets
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.generation import Generation
from limelight.http.anthropic.blocks import content_blocks, stop
from limelight.http.anthropic.frames import MessageFrames
from limelight.http.conversation import PreparedConversation, prepare
from limelight.http.errors import ERROR_SHAPE
from limelight.http.protocol.anthropic.answer import Message, anthropic_error, message_usage
from limelight.http.protocol.anthropic.conversation import conversation, sampling
from limelight.http.protocol.anthropic.request import MESSAGES_DECODER
from limelight.http.serving import Serving
from limelight.http.sse import StreamedAnswer
from limelight.http.whole import WholeAnswer

ANTHROPIC_ERRORS = {ERROR_SHAPE: anthropic_error}


def message_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """The routes."""

    @post("/v1/messages", status_code=200, opt=ANTHROPIC_ERRORS)
    async def messages(request: Request[Any, Any, Any]) -> ASGIApp:
        body, ignored = await serving.decode(request, MESSAGES_DECODER)
        serving.check_model(body.model)
        headers = serving.report_ignored(ignored)
        engine = serving.engine
        message_id = f"msg_{secrets.token_hex(12)}"
        prepared = prepare(engine, conversation(body), sampling(body, engine.default_sampling))
        generation = serving.request(
            request.scope["user"].name,
            message_id,
            prepared.prompt,
            prepared.sampling,
            model=body.model,
            reasoning=prepared.reasoning,
        )
        if body.stream:
            writer = MessageFrames(message_id, body.model, prepared)
            return StreamedAnswer(engine, [generation], writer, serving.settings, headers)

        def build(generations: list[Generation]) -> Message:
            return whole_message(message_id, body.model, prepared, generations[0])

        return WholeAnswer(engine, [generation], build, headers)

    return [messages]


def whole_message(message_id: str, model: str, prepared: PreparedConversation, generation: Generation) -> Message:
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
    )
