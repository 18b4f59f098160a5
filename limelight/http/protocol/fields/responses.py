"""Rows of `/v1/responses`."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, no_effect, refused, works
from limelight.http.protocol.fields.generation import DRAW_FIELDS
from limelight.http.protocol.fields.wording import CACHING, IDENTITY, TEXT_ONLY

_LENGTH = "use max_output_tokens"
_NEVER_CUT = "a prompt is never cut here; shorten the input before sending, or use /v1/chat/completions"
_CHATS = "not a field of this API; /v1/chat/completions has it"
_TIER = "every request is served alike; the answer says default"

RESPONSES_FIELDS: Mapping[str, Field] = {
    **DRAW_FIELDS,
    "model": works(),
    "input": works("a string or items; image, audio and file parts are refused, and so are items of hosted tools"),
    "instructions": works("a system message before everything else; not carried over by previous_response_id"),
    "previous_response_id": works("continues a stored response"),
    "stream": works(),
    "background": works("answers at once and goes on by itself; needs store"),
    "store": works("on unless false: kept in memory, bounded by number, bytes and age"),
    "metadata": works("up to 16 pairs; comes back with the answer"),
    "include": works("message.output_text.logprobs; reasoning.encrypted_content has no effect, the rest is refused"),
    "max_output_tokens": works("reasoning included"),
    "top_logprobs": works("0 to 20; needs include: message.output_text.logprobs"),
    "text": works("format: text, json_object or json_schema; a verbosity other than medium is refused"),
    "reasoning": works(
        "effort, for models whose chat template reads it; summaries are refused, the reasoning is given"
    ),
    "tools": works("function, and custom with free text; hosted tools are refused"),
    "tool_choice": works("none, auto, required, a named tool, or allowed_tools"),
    "parallel_tool_calls": works(),
    "structured_outputs": works("exactly one of json, regex, choice, grammar, json_object, structural_tag"),
    "repetition_detection": works("as for chats; such an answer is completed"),
    "stream_interval": works("tokens between the events of a stream; the first ones and the last never wait"),
    "include_reasoning": works("false leaves the reasoning items out"),
    "chat_template_kwargs": works("further variables for the chat template"),
    "stream_options": no_effect("include_obfuscation pads events elsewhere; here it does nothing"),
    "max_tool_calls": no_effect("limits the calls of hosted tools, of which there are none"),
    "service_tier": no_effect(_TIER),
    "safety_identifier": no_effect(IDENTITY),
    "prompt_cache_key": no_effect(CACHING),
    "prompt_cache_options": no_effect(CACHING),
    "prompt_cache_retention": no_effect(CACHING),
    "truncation": refused(_NEVER_CUT, "disabled"),
    "conversation": refused("conversation objects are not served; use previous_response_id, or send all items"),
    "prompt": refused("there are no stored prompt templates; send the text as input and instructions"),
    "background_options": refused("a background response starts as soon as there is room"),
    "context_management": refused("the context is never compacted silently; send fewer items", []),
    "access_programs": refused("there are no access programs; leave it out"),
    "image": refused(TEXT_ONLY),
    "moderation": refused("this server does not moderate; run a moderation model on input and output"),
    "n": refused("a response has one answer; ask several times, or use /v1/chat/completions", 1),
    "messages": refused("use input, or /v1/chat/completions"),
    "max_tokens": refused(_LENGTH),
    "max_completion_tokens": refused(_LENGTH),
    "response_format": refused("use text.format"),
    "reasoning_effort": refused("use reasoning.effort"),
    "logprobs": refused("use include: [message.output_text.logprobs] and top_logprobs", False),
    "functions": refused("use tools"),
    "function_call": refused("use tool_choice"),
    "verbosity": refused("say in the input how long the answer shall be", "medium"),
    "web_search_options": refused("this server cannot search the web; put what it shall read into the input"),
    "modalities": refused(TEXT_ONLY, ["text"]),
    "audio": refused(TEXT_ONLY),
    "prediction": refused("predicted outputs are not served; leave the field out, the answer is the same"),
    "truncate_prompt_tokens": refused(_NEVER_CUT),
    "truncation_side": refused(_NEVER_CUT),
    "add_generation_prompt": refused(_CHATS, True),
    "continue_final_message": refused(_CHATS, False),
    "add_special_tokens": refused(_CHATS, False),
    "echo": refused(_CHATS, False),
    "chat_template": refused(_CHATS),
    "documents": refused("put the documents into the input, or into chat_template_kwargs"),
    "detokenize": refused("text is always returned", True),
    "prompt_logprobs": refused(_CHATS),
    "logprob_token_ids": refused(_CHATS),
    "return_tokens_as_token_ids": refused(_CHATS, False),
    "return_token_ids": refused(_CHATS, False),
    "return_token_offsets": refused(_CHATS, False),
    "return_prompt_text": refused(_CHATS, False),
}
