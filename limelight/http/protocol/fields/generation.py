"""What every endpoint that generates from a prompt or a chat has in common."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, no_effect, works
from limelight.http.protocol.fields.wording import IDENTITY

GENERATION_FIELDS: Mapping[str, Field] = {
    "model": works(),
    "n": works("1 to 128 choices"),
    "stream": works(),
    "stream_options": works("include_usage, continuous_usage_stats; only with stream"),
    "max_tokens": works(),
    "temperature": works(),
    "top_p": works(),
    "top_k": works("0 and -1 switch it off"),
    "min_p": works(),
    "presence_penalty": works(),
    "frequency_penalty": works(),
    "repetition_penalty": works(),
    "seed": works("-1 counts as not given"),
    "stop": works("a string or up to 16 of them"),
    "stop_token_ids": works(),
    "include_stop_str_in_output": works(),
    "ignore_eos": works(),
    "min_tokens": works(),
    "skip_special_tokens": works(),
    "logit_bias": works("token id as a string key -> -100 to 100"),
    "logprobs": works(),
    "priority": works("lower is served earlier"),
    "cache_salt": works("only requests with the same salt share cached prefixes"),
    "request_id": works("echoed in the x-request-id header"),
    "user": no_effect(IDENTITY),
}
