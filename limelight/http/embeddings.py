"""`POST /v1/embeddings`: texts or token ids in, a vector for each out."""

from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.errors import InvalidRequest
from limelight.generation import Generation, SamplingParams
from limelight.http.exchange import GENERATES
from limelight.http.protocol.embeddings import (
    EMBEDDING_DECODER,
    EmbeddingList,
    EmbeddingObject,
    EmbeddingUsage,
    embedding_prompts,
    encoded,
)
from limelight.http.protocol.sampling import check_labels
from limelight.http.request_id import adopt_request_id
from limelight.http.serving import Serving, new_id
from limelight.http.whole import WholeAnswer

UNSAMPLED = SamplingParams()
"""Nothing is drawn."""


def embeddings_route(serving: Serving) -> HTTPRouteHandler:
    """The route."""

    @post("/v1/embeddings", status_code=200, opt=GENERATES)
    async def embeddings(request: Request[Any, Any, Any]) -> ASGIApp:
        asked, ignored = await serving.decode(request, EMBEDDING_DECODER)
        check_labels(asked.cache_salt, asked.request_id)
        if asked.request_id is not None:
            adopt_request_id(request.scope, asked.request_id)
        serving.check_model(asked.model, request)
        engine = serving.engine
        settings = engine.embedding_settings
        settings.check(asked.dimensions)
        prompts = embedding_prompts(asked)
        if len(prompts) > engine.config.max_num_requests:
            raise InvalidRequest(
                f"input has {len(prompts)} entries, this server takes {engine.config.max_num_requests} at once",
                param="input",
            )
        answer_id = new_id("embd")
        requests = [
            msgspec.structs.replace(
                serving.request(
                    request,
                    f"{answer_id}-{number}",
                    prompt,
                    UNSAMPLED,
                    model=asked.model,
                    priority=asked.priority,
                    cache_salt=asked.cache_salt,
                ),
                pooling=settings.pooling,
            )
            for number, prompt in enumerate(prompts)
        ]

        def build(generations: list[Generation]) -> EmbeddingList:
            vectors = [
                encoded(settings.vector(generation.pooled or (), asked.dimensions), asked) for generation in generations
            ]
            num_tokens = sum(generation.usage.prompt_tokens for generation in generations)
            return EmbeddingList(
                data=[EmbeddingObject(index=index, embedding=vector) for index, vector in enumerate(vectors)],
                model=asked.model,
                usage=EmbeddingUsage(num_tokens, num_tokens),
            )

        return WholeAnswer(engine, requests, build, serving.report_ignored(ignored))

    return embeddings
