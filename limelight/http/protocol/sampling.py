"""The request fields that both endpoints share, and their way into `SamplingParams`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from limelight.errors import InvalidRequest
from limelight.generation import RepetitionDetection, SamplingParams, Truncation
from limelight.http.request_id import REQUEST_ID
from limelight.structured_outputs import StructuredOutputsParams

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Bounded, because Python refuses to print an integer of thousands of digits into an error message."""

MAX_CACHE_SALT_CHARACTERS = 128
DRAWN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "thinking_token_budget",
    "repetition_detection",
    "stream_interval",
    "skip_reading_prefix_cache",
)
"""Fields of `DrawFields` that `SamplingParams` has under the same names."""
_SAME_NAME = ("n", *DRAWN, "logprob_token_ids", "structured_outputs", "detokenize")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_options`. `include_obfuscation` pads chunks against traffic analysis elsewhere; here it does nothing."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


OBJECT_FIELDS: Mapping[str, frozenset[str]] = {
    "stream_options": frozenset(StreamOptions.__struct_fields__),
    "structured_outputs": frozenset(StructuredOutputsParams.__struct_fields__) - {"param"},
    "repetition_detection": frozenset(RepetitionDetection.__struct_fields__),
}
"""Fields that hold an object -> the names that it may have."""


class DrawFields(msgspec.Struct, frozen=True, kw_only=True):
    """What every endpoint that generates an answer takes. None is "not given", as an explicit null is."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Integer | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[Integer, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[Integer] | None = None
    thinking_token_budget: Integer | None = None
    structured_outputs: StructuredOutputsParams | None = None
    repetition_detection: RepetitionDetection | None = None
    stream_interval: Integer | None = None
    skip_reading_prefix_cache: bool | None = None
    session_id: str | None = None
    spaces_between_special_tokens: bool | None = None
    priority: Integer | None = None
    max_queue_ms: float | None = None
    max_ttft_ms: float | None = None
    max_total_ms: float | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_timings: bool | None = None
    user: str | None = None


class GenerationFields(DrawFields, frozen=True, kw_only=True):
    """What a chat and a completion have in common."""

    model: str
    n: Integer | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Integer | None = None
    prompt_logprobs: Integer | None = None
    logprob_token_ids: list[Integer] | None = None
    return_tokens_as_token_ids: bool | None = None
    detokenize: bool | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    return_token_offsets: bool | None = None

    @property
    def truncation(self) -> Truncation | None:
        """How a long prompt is cut, None if it is not.

        Raises:
            InvalidRequest: no token would be left.
        """
        if self.truncate_prompt_tokens is None:
            return None
        num_tokens = None if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens
        return Truncation(max_tokens=num_tokens, side=self.truncation_side or "left")

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


def check_shared(fields: GenerationFields) -> None:
    """What types cannot say about the shared fields.

    Raises:
        InvalidRequest: names the field.
    """
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequest(
            "prompt_logprobs is not told in a stream; use stream: false (completions tell it, with echo and logprobs)",
            param="prompt_logprobs",
        )
    check_labels(fields.cache_salt, fields.request_id)


def check_labels(cache_salt: str | None, request_id: str | None) -> None:
    """What types cannot say about the names that a request gives.

    Raises:
        InvalidRequest: names the field.
    """
    if cache_salt is not None and not 0 < len(cache_salt) <= MAX_CACHE_SALT_CHARACTERS:
        raise InvalidRequest(
            f"cache_salt has {len(cache_salt)} characters, must have 1 to {MAX_CACHE_SALT_CHARACTERS}",
            param="cache_salt",
        )
    if request_id is not None and not REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest(
            "request_id must be 1 to 128 characters from A-Z a-z 0-9 . _ : / + = @ -", param="request_id"
        )


def sampling_params(
    fields: GenerationFields,
    defaults: SamplingParams,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """`defaults` (the model's own) with everything that the request gives.

    Raises:
        InvalidRequest: a value is out of range; `param` names the field.
    """
    given: dict[str, Any] = {name: getattr(fields, name) for name in _SAME_NAME if getattr(fields, name) is not None}
    if fields.seed is not None:
        given["seed"] = None if fields.seed == -1 else fields.seed
    return msgspec.structs.replace(
        defaults, **given, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )
