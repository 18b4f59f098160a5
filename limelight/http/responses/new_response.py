"""From the body of a request to what the engine is asked for, and the response that will hold the answer."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from limelight.engine import Engine
from limelight.errors import InvalidRequest
from limelight.generation import SamplingParams
from limelight.http.conversation import Conversation, PreparedConversation, prepare
from limelight.http.protocol.responses.items import Item
from limelight.http.protocol.responses.objects import Reasoning, ResponseObject
from limelight.http.protocol.responses.request import (
    NO_REASONING,
    ResponsesRequest,
    TextConfig,
    TextFormat,
    answer_format,
    num_logprobs,
    response_sampling,
    template_arguments,
)
from limelight.http.protocol.responses.tools import OfferedTools, offered_tools
from limelight.http.protocol.responses.transcript import template_messages
from limelight.http.responses.output import Output
from limelight.http.responses.run import ResponseRun
from limelight.http.responses.stored import StoredResponse
from limelight.http.serving import now

RESPONSE_PREFIX = "resp_"
"""What the id of a response begins with."""

_OWN_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "structured_outputs": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""What the fields of a chat are called here."""


class NewResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that can begin: what the engine gets, and what its answer becomes."""

    prepared: PreparedConversation
    run: ResponseRun


def new_response(
    engine: Engine,
    body: ResponsesRequest,
    items: tuple[Item, ...],
    parent: StoredResponse | None,
    *,
    stored: bool,
) -> NewResponse:
    """A response to `items`, which come after all that `parent` has.

    Args:
        body: checked by `check_request`.
        stored: whether it will be kept.

    Raises:
        InvalidRequest: the request cannot be served as it stands; `param` names the field.
    """
    tools = offered_tools(body.tools or (), body.tool_choice)
    sampling = response_sampling(body, engine.default_sampling)
    with in_own_terms(body):
        prepared = prepare(engine, _conversation(body, items, parent, tools), sampling)
    response = _empty_response(body, sampling, stored=stored)
    output = Output(tools.custom, with_logprobs=num_logprobs(body) is not None)
    return NewResponse(prepared=prepared, run=ResponseRun(response, prepared.reader(), output, body.return_timings))


@contextmanager
def in_own_terms(body: ResponsesRequest) -> Iterator[None]:
    """Errors about a chat's field, or about the form of the answer, name the field of `body` that it came from.

    Raises:
        InvalidRequest: what the block raised.
    """
    try:
        yield
    except InvalidRequest as error:
        if error.param != "structured_outputs" or body.structured_outputs is None:
            error.param = _OWN_NAMES.get(error.param or "", error.param)
        raise


def _conversation(
    body: ResponsesRequest, items: tuple[Item, ...], parent: StoredResponse | None, tools: OfferedTools
) -> Conversation:
    effort = body.reasoning.effort if body.reasoning else None
    earlier = parent.conversation() if parent else []
    return Conversation(
        messages=tuple(template_messages(body.instructions, earlier, items)),
        tools=tools.functions,
        tool_choice=tools.choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        answer_format=answer_format(body),
        include_reasoning=body.include_reasoning is not False,
        reasoning=None if effort is None else effort != NO_REASONING,
        template_arguments=template_arguments(body),
    )


def _empty_response(body: ResponsesRequest, sampling: SamplingParams, *, stored: bool) -> ResponseObject:
    text_format = body.text.format if body.text and body.text.format else TextFormat(type="text")
    return ResponseObject(
        id=f"{RESPONSE_PREFIX}{uuid.uuid4().hex}",
        created_at=now(),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=body.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=Reasoning(effort=body.reasoning.effort if body.reasoning else None),
        safety_identifier=body.safety_identifier,
        store=stored,
        temperature=sampling.temperature,
        text=TextConfig(format=text_format, verbosity="medium"),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        user=body.user,
    )
