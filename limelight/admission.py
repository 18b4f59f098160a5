"""What can be decided about a request before any work is spent on it. Pure."""

import math
import secrets
from collections.abc import Collection

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.generation import MAX_QUOTA_TOKENS, GenerationRequest, Share, TokensPrompt
from limelight.quoting import MAX_REASON_CHARACTERS, encodable, quoted

UNSEEDED = (None, -1)
"""Values of `seed` that ask for a fresh one; -1 as in vLLM."""


def check_token_ids(request: GenerationRequest, vocab_size: int) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        InvalidRequest: names the field, the id and the limit.
    """
    if isinstance(request.prompt, TokensPrompt):
        check_ids("prompt", request.prompt.token_ids, vocab_size)
    check_ids("stop_token_ids", request.sampling.stop_token_ids or (), vocab_size)
    check_ids("logit_bias", request.sampling.logit_bias or (), vocab_size)
    check_ids("logprob_token_ids", request.sampling.logprob_token_ids or (), vocab_size)
    check_ids("allowed_token_ids", request.sampling.allowed_token_ids or (), vocab_size)


def check_readable(request: GenerationRequest, unreadable: str | None) -> None:
    """Refuse what is read of a prompt's rows, where they cannot be.

    Raises:
        UnsupportedField: says why.
    """
    if unreadable is None:
        return
    if request.pooling is not None:
        raise UnsupportedField(f"this model makes no embeddings: {unreadable}", param="model")
    if request.sampling.prompt_logprobs is not None:
        raise UnsupportedField(
            f"this model gives no log-probabilities of the prompt: {unreadable}", param="prompt_logprobs"
        )


def check_names(request: GenerationRequest) -> None:
    """Refuse names that could not be shown: the tables of live requests, logs, traces and metrics are everybody's.

    Raises:
        InvalidRequest: names the field and the value.
    """
    fields = ("request_id", "owner") if request.http_request_id is None else ("request_id", "owner", "http_request_id")
    for field in fields:
        name = getattr(request, field)
        if not isinstance(name, str) or encodable(name) != name:
            raise InvalidRequest(
                f"{field} is {quoted(name)}; it must be a string of at most {MAX_REASON_CHARACTERS} characters that "
                "UTF-8 can encode",
                param=field,
            )


def check_types(request: GenerationRequest) -> None:
    """Refuse values that only a caller in Python can get wrong, before they meet those of other requests.

    Raises:
        InvalidRequest: names the field and the value.
    """
    if isinstance(request.prompt, TokensPrompt):
        for token_id in request.prompt.token_ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise InvalidRequest(f"prompt holds {quoted(token_id)}; token ids are integers", param="prompt")
    if not isinstance(request.priority, int):
        raise InvalidRequest(f"priority is {quoted(request.priority)}; it must be an integer", param="priority")
    if not isinstance(request.adapter, str | None):
        raise InvalidRequest(f"adapter is {quoted(request.adapter)}; it must be a string", param="adapter")
    if request.share is not None:
        _check_share(request.share)
    for field in () if request.deadlines is None else request.deadlines.__struct_fields__:
        limit = getattr(request.deadlines, field)
        if limit is not None and not (isinstance(limit, int | float) and 0 < limit < math.inf):
            raise InvalidRequest(
                f"{field} is {quoted(limit)}; it must be milliseconds above 0, or left out", param=field
            )
    if not isinstance(request.cache_salt, str | None):
        raise InvalidRequest(f"cache_salt is {quoted(request.cache_salt)}; it must be a string", param="cache_salt")


def _check_share(share: Share) -> None:
    for field, name in (("name", share.name), ("payer", share.payer)):
        if name is not None and encodable(name) != name:
            raise InvalidRequest(
                f"share.{field} is {quoted(name)}; it must be a string of at most {MAX_REASON_CHARACTERS} characters "
                "that UTF-8 can encode",
                param="share",
            )
    if not (isinstance(share.weight, int | float) and 0 < share.weight < math.inf):
        raise InvalidRequest(f"share.weight is {quoted(share.weight)}; it must be a number above 0", param="share")
    for field, number in (("tokens_per_minute", share.tokens_per_minute), ("burst_tokens", share.burst_tokens)):
        if number is not None and not (isinstance(number, int | float) and 1 <= number <= MAX_QUOTA_TOKENS):
            raise InvalidRequest(
                f"share.{field} is {quoted(number)}; it must be a number from 1 to {MAX_QUOTA_TOKENS}, or None",
                param="share",
            )
    if share.burst_tokens is not None and share.tokens_per_minute is None:
        raise InvalidRequest(
            f"share.burst_tokens is {share.burst_tokens:g} without tokens_per_minute; give both, or neither",
            param="share",
        )


def with_seed(request: GenerationRequest) -> GenerationRequest:
    """The request itself if it has a seed, else with a fresh one."""
    if request.sampling.seed not in UNSEEDED:
        return request
    sampling = msgspec.structs.replace(request.sampling, seed=secrets.randbits(63))
    return msgspec.structs.replace(request, sampling=sampling)


def check_ids(field: str, token_ids: Collection[int], vocab_size: int) -> None:
    """Raises InvalidRequest, naming the field, if one of `token_ids` is not of the model's."""
    if not token_ids:
        return
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"{field} holds token id {token_id}; this model's ids are 0 to {vocab_size - 1}", param=field
            )
