"""Rows of `/v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, no_effect, refused, works
from limelight.http.protocol.fields.wording import CACHING, IDENTITY

_HOSTED = "this server runs no tools of its own; give tools of your own, with an input_schema"
_CHATS = "not a field of this API; /v1/chat/completions has it"
_ONE_SPEED = "this server has one speed"

_BOTH: Mapping[str, Field] = {
    "model": works(),
    "messages": works("text, tool_use, tool_result and thinking blocks; images and documents are refused"),
    "system": works("a string or text blocks"),
    "tools": works("tools of the client, with an input_schema; strict ones bind the output to it"),
    "tool_choice": works("auto, any, tool or none, with disable_parallel_tool_use"),
    "thinking": works("enabled with budget_tokens, adaptive or disabled; off unless given, where the model can"),
    "output_config": works("format (json_schema) and effort"),
    "output_format": refused("an earlier name of output_config.format; use that"),
    "cache_control": no_effect(CACHING),
    "speed": refused(_ONE_SPEED, "standard"),
    "context_management": refused("the conversation is served as it is sent; shorten it before sending"),
    "mcp_servers": refused(_HOSTED, []),
    "user_profile_id": no_effect(IDENTITY),
    "workspace_id": no_effect(IDENTITY),
}

MESSAGES_FIELDS: Mapping[str, Field] = {
    **_BOTH,
    "max_tokens": works("required; more than the context holds is clamped"),
    "stop_sequences": works("up to 16"),
    "stream": works(),
    "temperature": works("0 to 1"),
    "top_p": works(),
    "top_k": works(),
    "metadata": no_effect(IDENTITY),
    "service_tier": no_effect("there is one tier"),
    "inference_geo": no_effect("there is one place"),
    "return_timings": works("timings: milliseconds that the parts took, in the answer or at the end of a stream"),
    "container": refused(_HOSTED),
    "n": refused("a message is one answer; use /v1/chat/completions for several", 1),
    "stop": refused("use stop_sequences"),
    "response_format": refused("use output_config.format"),
    "max_completion_tokens": refused("use max_tokens"),
    **{
        name: refused(_CHATS)
        for name in ("seed", "logprobs", "logit_bias", "frequency_penalty", "presence_penalty", "min_p", "min_tokens")
    },
    "diagnostics": refused("this server gives no diagnostics of its cache; usage says what was read from it"),
}

COUNT_TOKENS_FIELDS = _BOTH
