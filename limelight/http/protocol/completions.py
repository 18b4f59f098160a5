"""`/v1/completions` on the wire: what comes in, what goes out."""

from typing import Any, cast

import msgspec

from limelight.errors import InvalidRequest
from limelight.generation import SamplingParams, TextPrompt, TokensPrompt
from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.completions import COMPLETION_FIELDS
from limelight.http.protocol.logprobs import LegacyLogprobs, PromptLogprobs
from limelight.http.protocol.response_format import answer_form
from limelight.http.protocol.returned_tokens import ReturnedPrompt, TokenIds
from limelight.http.protocol.sampling import OBJECT_FIELDS, GenerationFields, Integer, sampling_params
from limelight.http.protocol.timings import AnswerTimings
from limelight.http.protocol.usage import ChunkUsage

DEFAULT_MAX_TOKENS = 16
"""The API's own default for this endpoint."""


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of a completion request."""

    prompt: str | list[str | Integer | list[Integer]]
    logprobs: Integer | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    response_format: dict[str, Any] | None = None


COMPLETION_DECODER = Decoder(CompletionRequest, COMPLETION_FIELDS, OBJECT_FIELDS)


def completion_prompts(completion: CompletionRequest) -> list[TextPrompt | TokensPrompt]:
    """The prompts of a request, in order.

    Raises:
        InvalidRequest: no prompt, an empty one, or a list that mixes kinds.
    """
    prompt = completion.prompt
    special = completion.add_special_tokens is not False
    if isinstance(prompt, str):
        return [TextPrompt(prompt, special)]
    if not prompt:
        raise InvalidRequest("prompt is an empty list; send at least one prompt", param="prompt")
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise InvalidRequest("prompt mixes strings, token ids and lists; use one kind", param="prompt")
    if kinds == {int}:
        return [TokensPrompt(cast("tuple[int, ...]", tuple(prompt)))]
    return [_prompt(entry, f"prompt[{index}]", special) for index, entry in enumerate(prompt)]


def _prompt(entry: str | int | list[int], where: str, special: bool) -> TextPrompt | TokensPrompt:
    if isinstance(entry, str):
        return TextPrompt(entry, special)
    assert isinstance(entry, list), "token ids of one prompt were handled by the caller"
    if not entry:
        raise InvalidRequest(f"{where} is an empty list of token ids", param=where)
    return TokensPrompt(tuple(entry))


def completion_sampling(completion: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling of a completion: 16 tokens unless the request says otherwise.

    Raises:
        InvalidRequest: a value is out of range, or fields contradict each other.
    """
    scored = completion.prompt_logprobs
    if completion.echo and completion.logprobs is not None:
        scored = max(completion.logprobs, scored or 0)
    if completion.max_tokens == 0 and scored is None:
        raise InvalidRequest(
            "max_tokens is 0, must be at least 1; 0 scores the prompt, with echo and logprobs, or with prompt_logprobs",
            param="max_tokens",
        )
    if completion.echo and completion.truncate_prompt_tokens is not None:
        raise InvalidRequest(
            "echo gives the whole prompt back, so it cannot be cut; drop echo or truncate_prompt_tokens",
            param="truncate_prompt_tokens",
        )
    sampling = sampling_params(
        completion,
        defaults,
        max_tokens=DEFAULT_MAX_TOKENS if completion.max_tokens is None else completion.max_tokens,
        logprobs=completion.logprobs,
        prompt_logprobs=scored,
    )
    form = answer_form(completion.response_format, completion.structured_outputs)
    return sampling if form is None else msgspec.structs.replace(sampling, structured_outputs=form)


class CompletionChoice(ReturnedPrompt, frozen=True, kw_only=True):
    """One text, whole or (in a stream) what is new of it. The last three as in a chat's choice."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    finish_details: str | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: TokenIds = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response, or one frame of a stream: both have the same shape."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: None = None
    choices: list[CompletionChoice]
    usage: ChunkUsage = msgspec.UNSET
    timings: AnswerTimings = msgspec.UNSET
