"""Rows of `/v1/chat/completions`."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, no_effect, refused, works
from limelight.http.protocol.fields.generation import GENERATION_FIELDS
from limelight.http.protocol.fields.wording import CACHING, FILING, IDENTITY, TEXT_ONLY

CHAT_FIELDS: Mapping[str, Field] = {
    **GENERATION_FIELDS,
    "messages": works("text; image, audio and file parts are refused"),
    "max_completion_tokens": works("wins over max_tokens"),
    "top_logprobs": works("0 to 20; needs logprobs"),
    "reasoning_effort": works(
        "none switches reasoning off, where the chat template can; others are handed to the template"
    ),
    "chat_template_kwargs": works("further variables for the chat template"),
    "add_generation_prompt": works(),
    "continue_final_message": works("the answer goes on with the last message, an assistant one"),
    "add_special_tokens": works("the tokenizer adds its own special tokens to what the template wrote"),
    "documents": works("handed to the chat template, for models whose template reads them"),
    "chat_template": works("replaces the model's template; refused without --trust-request-chat-template"),
    "echo": works("the answer begins with the last message, if that is an assistant's"),
    "metadata": no_effect(FILING),
    "store": no_effect(FILING),
    "service_tier": no_effect(FILING),
    "safety_identifier": no_effect(IDENTITY),
    "prompt_cache_key": no_effect(CACHING),
    "prompt_cache_options": no_effect(CACHING),
    "prompt_cache_retention": no_effect(CACHING),
    "tools": works("functions; their schemas are followed with strict, or where a call is required"),
    "tool_choice": works("none, auto, required, or a function; auto needs a model that was trained to call tools"),
    "parallel_tool_calls": works("false: one call at most"),
    "functions": works("the first form of tools; the answer has function_call"),
    "function_call": works("the first form of tool_choice"),
    "response_format": works("text, json_object, json_schema or structural_tag"),
    "include_reasoning": works("false leaves the reasoning out of the answer"),
    "modalities": refused(TEXT_ONLY, ["text"]),
    "audio": refused(TEXT_ONLY),
    "prediction": refused("predicted outputs are not served; leave the field out, the answer is the same"),
    "verbosity": refused("say in the prompt how long the answer shall be", "medium"),
    "web_search_options": refused("this server cannot search the web; put what it shall read into the messages"),
    "moderation": refused("this server does not moderate; run a moderation model on prompt and answer"),
}
