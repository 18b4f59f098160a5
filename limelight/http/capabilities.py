"""`GET /v1/capabilities`: what this server does with every request field, and what its model can do."""

from typing import Any

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler

from limelight import __version__
from limelight.engine import Engine
from limelight.generation import MAX_CHOICES, MAX_LOGIT_BIAS_ENTRIES, MAX_LOGPROBS, MAX_STOP_STRINGS
from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.http.protocol.fields.field import Effect, Field
from limelight.http.protocol.fields.other_engines import OTHER_ENGINES
from limelight.http.protocol.sizes import MAX_ENTRIES, MAX_PROMPTS
from limelight.http.serving import Serving


class FieldEffect(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of the table; `accepted_values` of a refused field ask for what happens anyway."""

    effect: Effect
    note: str = ""
    accepted_values: tuple[Any, ...] = ()


class EndpointFields(msgspec.Struct, frozen=True):
    """What one endpoint does with its fields."""

    path: str
    fields: dict[str, FieldEffect]


class ReasoningFacts(msgspec.Struct, frozen=True):
    """The marks of a model's reasoning; `switch`: the `chat_template_kwargs` variable that turns it on and off."""

    start: str
    end: str
    switch: str | None


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the served model is and can do.

    Attributes:
        max_model_len: its context in tokens, prompt and answer together.
        reasoning: None if it has no reasoning that is known how to be found.
        tool_format: how it writes tool calls; None: it calls tools only where `tool_choice` makes it.
        renders_tools: its chat template takes `tools`; for others they are described in the system message.
        embeddings: whether it makes any.
    """

    id: str
    max_model_len: int
    vocab_size: int
    reasoning: ReasoningFacts | None
    tool_format: str | None
    renders_tools: bool
    embeddings: bool
    adapters: list[str]
    loads_adapters: bool


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a request, and of all requests together."""

    max_num_requests: int
    max_body_bytes: int
    max_choices: int = MAX_CHOICES
    max_logprobs: int = MAX_LOGPROBS
    max_stop_strings: int = MAX_STOP_STRINGS
    max_logit_bias_entries: int = MAX_LOGIT_BIAS_ENTRIES
    max_prompts: int = MAX_PROMPTS
    max_message_parts: int = MAX_ENTRIES


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `unknown_fields` ("suggest", "refuse", "ignore"): what becomes of a field in no list."""

    object: str = "capabilities"
    version: str = __version__
    model: ModelFacts
    limits: Limits
    unknown_fields: str
    endpoints: list[EndpointFields]
    other_engines: dict[str, FieldEffect]


def capabilities_route(serving: Serving) -> HTTPRouteHandler:
    """The route."""

    @get("/v1/capabilities")
    async def capabilities() -> Capabilities:
        settings = serving.settings
        return Capabilities(
            model=_model_facts(serving.engine),
            limits=Limits(
                max_num_requests=serving.engine.config.max_num_requests, max_body_bytes=settings.max_body_bytes
            ),
            unknown_fields=settings.unknown_fields,
            endpoints=[
                EndpointFields(endpoint.path, {name: _effect(field) for name, field in endpoint.fields.items()})
                for endpoint in ENDPOINTS
            ],
            other_engines={name: _effect(field) for name, field in OTHER_ENGINES.items()},
        )

    return capabilities


def _model_facts(engine: Engine) -> ModelFacts:
    model, answers = engine.model, engine.answer_format
    marks = answers.reasoning
    return ModelFacts(
        id=engine.model_name,
        max_model_len=model.capacity.max_model_len,
        vocab_size=model.capacity.vocab_size,
        reasoning=None if marks is None else ReasoningFacts(marks.start, marks.end, answers.reasoning_switch),
        tool_format=answers.tool_format,
        renders_tools=answers.renders_tools,
        embeddings=model.embedding is not None,
        adapters=[adapter.name for adapter in engine.adapters],
        loads_adapters=model.adapters is not None,
    )


def _effect(field: Field) -> FieldEffect:
    return FieldEffect(field.effect, field.note, field.accepts)
