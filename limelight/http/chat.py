"""`POST /v1/chat/completions`: a conversation in, an answer or a stream of chunks out."""

from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from limelight.generation import Completion, Generation
from limelight.http.chat_frames import ChatFrames, wire_finish_reason
from limelight.http.conversation import PreparedConversation, WholeParts, prepare
from limelight.http.exchange import GENERATES, exchange_of
from limelight.http.protocol.chat import (
    CHAT_DECODER,
    ChatRequest,
    chat_conversation,
    chat_sampling,
    choice_logprobs,
    echoed_text,
)
from limelight.http.protocol.chat_answer import (
    AnswerMessage,
    AnswerToolCall,
    CalledFunction,
    ChatChoice,
    ChatCompletion,
)
from limelight.http.protocol.logprobs import prompt_logprobs
from limelight.http.protocol.returned_tokens import ReturnedTokens
from limelight.http.protocol.timings import AnswerTimings, asked_timings
from limelight.http.protocol.usage import usage_object
from limelight.http.serving import Serving, new_id, now
from limelight.http.settings import ReasoningField
from limelight.http.stream_routes import resume
from limelight.http.whole import WholeAnswer


def chat_route(serving: Serving) -> HTTPRouteHandler:
    """The route."""

    @post("/v1/chat/completions", status_code=200, opt=GENERATES, before_request=resume(serving))
    async def chat_completions(request: Request[Any, Any, Any]) -> ASGIApp:
        chat, headers = await serving.read(request, CHAT_DECODER)
        serving.check_template(chat.chat_template)
        engine = serving.engine
        answer_id = new_id("chatcmpl")
        conversation = await serving.work(request, partial(chat_conversation, chat))
        prepared = prepare(engine, conversation, chat_sampling(chat, engine.default_sampling))
        generation = serving.request(
            request,
            answer_id,
            prepared.prompt,
            prepared.sampling,
            model=chat.model,
            priority=chat.priority,
            cache_salt=chat.cache_salt,
            limits=chat,
            reasoning=prepared.reasoning,
            truncation=chat.truncation,
            return_token_offsets=chat.return_token_offsets,
        )
        reasoning_field = serving.settings.reasoning_field
        if chat.stream:
            writer = ChatFrames(answer_id, chat, prepared, reasoning_field)
            return serving.streamed(request, [generation], writer, headers)

        def build(generations: list[Generation]) -> ChatCompletion:
            timings = asked_timings(chat.return_timings, exchange_of(request.scope).timelines)
            return chat_completion(answer_id, chat, prepared, reasoning_field, generations[0], timings)

        return WholeAnswer(engine, [generation], build, headers)

    return chat_completions


def chat_completion(
    answer_id: str,
    chat: ChatRequest,
    prepared: PreparedConversation,
    reasoning_field: ReasoningField,
    generation: Generation,
    timings: AnswerTimings,
) -> ChatCompletion:
    """The whole response."""
    returned = ReturnedTokens(chat)
    scores = generation.prompt_logprobs
    choices = []
    for output in generation.outputs:
        parts = prepared.whole(output)
        message = _message(chat, prepared, reasoning_field, parts)
        choices.append(_choice(output, message, wire_finish_reason(chat, parts.finish_reason), returned))
    answer = ChatCompletion(
        id=answer_id,
        created=now(),
        model=chat.model,
        choices=choices,
        usage=usage_object([generation.usage]),
        prompt_logprobs=msgspec.UNSET if scores is None else prompt_logprobs(scores),
        timings=timings,
    )
    return returned.with_prompt(answer, generation)


def _message(
    chat: ChatRequest, prepared: PreparedConversation, reasoning_field: ReasoningField, parts: WholeParts
) -> AnswerMessage:
    text = echoed_text(chat) + parts.text
    further: dict[str, Any] = {reasoning_field: parts.reasoning} if parts.reasoning else {}
    calls = [CalledFunction(call.name, call.arguments) for call in parts.calls]
    if calls and chat.functions is not None:
        further["function_call"] = calls[0]
    elif calls:
        further["tool_calls"] = [AnswerToolCall(id=prepared.new_call_id(), function=call) for call in calls]
    return AnswerMessage(content=None if calls and not text else text, **further)


def _choice(output: Completion, message: AnswerMessage, finish_reason: str, returned: ReturnedTokens) -> ChatChoice:
    return ChatChoice(
        index=output.index,
        message=message,
        logprobs=choice_logprobs(output.logprobs, as_ids=returned.named_by_id),
        finish_reason=finish_reason,
        stop_reason=output.stop_reason,
        finish_details=output.finish_details,
        token_ids=returned.token_ids(output.token_ids),
    )
