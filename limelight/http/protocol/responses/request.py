"""The body of `POST /v1/responses`, and what the engine is asked for."""

from typing import Any, Literal

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.generation import MAX_LOGPROBS, SamplingParams
from limelight.http.protocol.chat import TEMPLATE_OWN_VARIABLES
from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.responses import RESPONSES_FIELDS
from limelight.http.protocol.responses.items import ITEM_FIELDS, Item
from limelight.http.protocol.responses.tools import TOOL_FIELDS, Tool, ToolChoiceObject
from limelight.http.protocol.sampling import DRAWN, DrawFields, Integer
from limelight.quoting import quoted
from limelight.structured_outputs import StructuredOutputsParams

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""Without effect: reasoning items have their text, so that they can be sent back as they came, stored or not."""
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARACTERS = 64
MAX_METADATA_VALUE_CHARACTERS = 512
NO_REASONING = "none"
EFFORTS = (NO_REASONING, "minimal", "low", "medium", "high", "xhigh", "max")


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`text.format`; `name`, `schema`, `description` and `strict` belong to `json_schema`."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`text`."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`reasoning`."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponsesStreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_obfuscation: bool | None = None


class ResponsesRequest(DrawFields, frozen=True, kw_only=True):
    """The body."""

    model: str
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    max_output_tokens: Integer | None = None
    max_tool_calls: Integer | None = None
    top_logprobs: Integer | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include_reasoning: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


RESPONSES_DECODER = Decoder(ResponsesRequest, RESPONSES_FIELDS, {"input": ITEM_FIELDS, "tools": TOOL_FIELDS})


def check_request(body: ResponsesRequest) -> None:
    """What types cannot say.

    Raises:
        InvalidRequest: names the field.
        UnsupportedField: a value that asks for what this server does not do.
    """
    if not body.input and body.previous_response_id is None:
        raise InvalidRequest("input is missing or empty; send a string or at least one item", param="input")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise InvalidRequest(
            f"max_output_tokens is {body.max_output_tokens}, must be at least 1", param="max_output_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    _check_metadata(body.metadata or {})
    _check_include(body)
    _check_reasoning(body.reasoning or ReasoningConfig())
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise UnsupportedField(
            f"text.verbosity is {quoted(body.text.verbosity or '')}; say in the input how long the answer shall be",
            param="text.verbosity",
        )


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_METADATA_PAIRS:
        raise InvalidRequest(
            f"metadata has {len(metadata)} pairs, at most {MAX_METADATA_PAIRS} are allowed", param="metadata"
        )
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_CHARACTERS or len(value) > MAX_METADATA_VALUE_CHARACTERS:
            raise InvalidRequest(
                f"metadata[{quoted(key)}] is too long: at most {MAX_METADATA_KEY_CHARACTERS} characters for a "
                f"key and {MAX_METADATA_VALUE_CHARACTERS} for a value",
                param="metadata",
            )


def _check_include(body: ResponsesRequest) -> None:
    for index, name in enumerate(body.include or ()):
        if name not in (LOGPROBS, ENCRYPTED_REASONING):
            raise UnsupportedField(
                f"include names {quoted(name)}: only {LOGPROBS} can be included", param=f"include[{index}]"
            )
    if not body.top_logprobs:
        return
    if LOGPROBS not in (body.include or ()):
        raise InvalidRequest(f"top_logprobs needs include: [{LOGPROBS!r}]", param="top_logprobs")
    if not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {body.top_logprobs}, must be an integer from 0 to {MAX_LOGPROBS}", param="top_logprobs"
        )


def _check_reasoning(reasoning: ReasoningConfig) -> None:
    if reasoning.effort is not None and reasoning.effort not in EFFORTS:
        raise InvalidRequest(
            f"reasoning.effort is {quoted(reasoning.effort)}, must be one of {', '.join(EFFORTS)}",
            param="reasoning.effort",
        )
    advice = {
        "summary": ("auto", "the reasoning itself is given, no summary of it"),
        "generate_summary": ("auto", "the reasoning itself is given, no summary of it"),
        "context": ("auto", "the model's chat template decides which reasoning it reads again"),
        "mode": ("standard", "there is one way to run the model"),
    }
    for name, (accepted, note) in advice.items():
        value = getattr(reasoning, name)
        if value not in (None, accepted):
            raise UnsupportedField(
                f"reasoning.{name} is {quoted(value)}, which is not supported: {note}",
                param=f"reasoning.{name}",
            )


def num_logprobs(body: ResponsesRequest) -> int | None:
    """How many alternatives each token of the text shall have, None: no log-probabilities."""
    return (body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None


def response_sampling(body: ResponsesRequest, defaults: SamplingParams) -> SamplingParams:
    """`defaults` (the model's own) with everything that the request gives.

    Raises:
        InvalidRequest: a value is out of range; `param` names the field.
    """
    given: dict[str, Any] = {name: getattr(body, name) for name in DRAWN if getattr(body, name) is not None}
    if body.seed is not None:
        given["seed"] = None if body.seed == -1 else body.seed
    max_tokens = defaults.max_tokens if body.max_output_tokens is None else body.max_output_tokens
    return msgspec.structs.replace(defaults, **given, n=1, max_tokens=max_tokens, logprobs=num_logprobs(body))


def template_arguments(body: ResponsesRequest) -> dict[str, Any]:
    """Further variables for the chat template.

    Raises:
        InvalidRequest: one that has a field of its own.
    """
    arguments = dict(body.chat_template_kwargs or {})
    own = TEMPLATE_OWN_VARIABLES & arguments.keys()
    if own:
        raise InvalidRequest(
            f"chat_template_kwargs cannot set {', '.join(sorted(own))}; use the request field",
            param="chat_template_kwargs",
        )
    effort = body.reasoning.effort if body.reasoning else None
    if effort not in (None, NO_REASONING):
        arguments.setdefault("reasoning_effort", effort)
    return arguments


def answer_format(body: ResponsesRequest) -> StructuredOutputsParams | None:
    """What the text must look like: `text.format` or `structured_outputs`, None: anything.

    Raises:
        InvalidRequest: both ask for a form, or `text.format` is incomplete; `param` names the field.
    """
    asked = body.text.format if body.text else None
    text_format = _text_format(asked) if asked else None
    if text_format is not None and body.structured_outputs is not None:
        raise InvalidRequest("structured_outputs and text.format both ask for a form; give one", param="text.format")
    return text_format or body.structured_outputs


def _text_format(asked: TextFormat) -> StructuredOutputsParams | None:
    kinds: tuple[Literal["text", "json_object", "json_schema"], ...] = ("text", "json_object", "json_schema")
    if asked.type not in kinds:
        raise InvalidRequest(
            f"text.format.type is {quoted(asked.type)}, must be one of {', '.join(kinds)}",
            param="text.format.type",
        )
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return StructuredOutputsParams(json_object=True)
    if asked.schema is None:
        raise InvalidRequest("text.format.schema is missing; json_schema needs it", param="text.format.schema")
    return StructuredOutputsParams(json=asked.schema)
