"""`POST /tokenize` and `POST /detokenize`: text to token ids and back, on the threads of the tokenizer."""

from functools import partial
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from limelight.http.conversation import Conversation, conversation_prompt
from limelight.http.protocol.tokens import (
    DETOKENIZE_DECODER,
    TOKENIZE_DECODER,
    Detokenized,
    Tokenized,
    tokenized_prompt,
)
from limelight.http.serving import Serving


def token_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """Both routes."""

    @post("/tokenize", status_code=200)
    async def tokenize(request: Request[Any, Any, Any]) -> Response[Tokenized]:
        """Token ids of a text or of a conversation."""
        body, ignored = await serving.decode(request, TOKENIZE_DECODER)
        if body.model is not None:
            serving.check_model(body.model, request)
        serving.check_template(body.chat_template)
        engine = serving.engine
        given = await serving.work(request, partial(tokenized_prompt, body))
        prompt = conversation_prompt(engine, given) if isinstance(given, Conversation) else given
        token_ids = await engine.tokenize(prompt)
        answer = Tokenized(
            count=len(token_ids),
            max_model_len=engine.model.capacity.max_model_len,
            tokens=token_ids,
            token_strs=await engine.token_texts(token_ids) if body.return_token_strs else None,
        )
        return Response(answer, headers=serving.report_ignored(ignored))

    @post("/detokenize", status_code=200)
    async def detokenize(request: Request[Any, Any, Any]) -> Response[Detokenized]:
        """The text of token ids."""
        body, ignored = await serving.decode(request, DETOKENIZE_DECODER)
        if body.model is not None:
            serving.check_model(body.model, request)
        text = await serving.engine.detokenize(body.tokens)
        return Response(Detokenized(text), headers=serving.report_ignored(ignored))

    return [tokenize, detokenize]
