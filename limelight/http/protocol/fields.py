"""What every request field does: the one table behind decoding, the documentation and the generated test.

The rule. A field *works*, or it is accepted with *no effect*, or it is *refused* by name. No effect is for fields about
who asks, how the request is filed, and what may be cached: leaving them out cannot change the answer. A field that asks
for a different answer, or for more in it, is refused as long as we cannot give that; its value that asks for what
happens anyway (`accepts`, and always null) is let through.
"""

import enum
from collections.abc import Mapping
from typing import Any

import msgspec


class Effect(enum.StrEnum):
    """What a request field does."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


class Field(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        note: for a refused field the advice that the client gets; else a remark, where the name does not say it all.
        accepts: values of a refused field that ask for what happens anyway.
    """

    effect: Effect
    note: str = ""
    accepts: tuple[Any, ...] = ()


def _works(note: str = "") -> Field:
    return Field(Effect.WORKS, note)


def _no_effect(note: str) -> Field:
    return Field(Effect.NO_EFFECT, note)


def _refused(note: str, *accepts: Any) -> Field:
    return Field(Effect.REFUSED, note, accepts)


_TOOLS = "tool calls are not served in this release; describe the tools in the system message and parse the answer"
_STRUCTURED = "constrained output is not served in this release; ask for the format in the prompt and check the answer"
_TEXT_ONLY = "this server reads and writes text only"
_IDENTITY = "says who asks; nothing in the answer depends on it"
_FILING = "says how the request is filed; nothing is stored"
_CACHING = "caching is automatic and per cache_salt"

_BOTH: Mapping[str, Field] = {
    "model": _works(),
    "n": _works("1 to 128 choices"),
    "stream": _works(),
    "stream_options": _works("include_usage, continuous_usage_stats; only with stream"),
    "max_tokens": _works(),
    "temperature": _works(),
    "top_p": _works(),
    "top_k": _works("0 and -1 switch it off"),
    "min_p": _works(),
    "presence_penalty": _works(),
    "frequency_penalty": _works(),
    "repetition_penalty": _works(),
    "seed": _works("-1 counts as not given"),
    "stop": _works("a string or up to 16 of them"),
    "stop_token_ids": _works(),
    "include_stop_str_in_output": _works(),
    "ignore_eos": _works(),
    "min_tokens": _works(),
    "skip_special_tokens": _works(),
    "logit_bias": _works("token id as a string key -> -100 to 100"),
    "logprobs": _works(),
    "priority": _works("lower is served earlier"),
    "cache_salt": _works("only requests with the same salt share cached prefixes"),
    "request_id": _works("echoed in the x-request-id header"),
    "user": _no_effect(_IDENTITY),
}

CHAT_FIELDS: Mapping[str, Field] = {
    **_BOTH,
    "messages": _works("text; image, audio and file parts are refused"),
    "max_completion_tokens": _works("wins over max_tokens"),
    "top_logprobs": _works("0 to 20; needs logprobs"),
    "reasoning_effort": _works("handed to the chat template, for models whose template reads it"),
    "chat_template_kwargs": _works("further variables for the chat template"),
    "add_generation_prompt": _works(),
    "continue_final_message": _works("the answer goes on with the last message, an assistant one"),
    "metadata": _no_effect(_FILING),
    "store": _no_effect(_FILING),
    "service_tier": _no_effect(_FILING),
    "safety_identifier": _no_effect(_IDENTITY),
    "prompt_cache_key": _no_effect(_CACHING),
    "prompt_cache_options": _no_effect(_CACHING),
    "prompt_cache_retention": _no_effect(_CACHING),
    "parallel_tool_calls": _no_effect("there are no tool calls that could be parallel"),
    "tools": _refused(_TOOLS),
    "tool_choice": _refused(_TOOLS, "none", "auto"),
    "functions": _refused(_TOOLS),
    "function_call": _refused(_TOOLS, "none"),
    "response_format": _refused(_STRUCTURED, {"type": "text"}),
    "modalities": _refused(_TEXT_ONLY, ["text"]),
    "audio": _refused(_TEXT_ONLY),
    "prediction": _refused("predicted outputs are not served; leave the field out, the answer is the same"),
    "verbosity": _refused("say in the prompt how long the answer shall be", "medium"),
    "web_search_options": _refused("this server cannot search the web; put what it shall read into the messages"),
    "moderation": _refused("this server does not moderate; run a moderation model on prompt and answer"),
}

COMPLETION_FIELDS: Mapping[str, Field] = {
    **_BOTH,
    "prompt": _works("a string, a list of strings, token ids, or a list of token-id lists"),
    "echo": _works("not together with logprobs"),
    "add_special_tokens": _works("whether the tokenizer adds its own special tokens (a BOS, say) to a text prompt"),
    "suffix": _refused("fill-in-the-middle is not served; put the model's own infill markers into the prompt", ""),
    "best_of": _refused("ask for n choices with logprobs, and choose among them", 1),
}

_LATER = "not served in this release; leave it out"
_LLAMA_SAMPLER = "this sampler is not served; use temperature, top_p, top_k and min_p"

OTHER_ENGINES: Mapping[str, Field] = {
    # vLLM
    "guided_json": _refused(_STRUCTURED),
    "guided_regex": _refused(_STRUCTURED),
    "guided_choice": _refused(_STRUCTURED),
    "guided_grammar": _refused(_STRUCTURED),
    "guided_decoding_backend": _refused(_STRUCTURED),
    "guided_whitespace_pattern": _refused(_STRUCTURED),
    "structured_outputs": _refused(_STRUCTURED),
    "structural_tag": _refused(_STRUCTURED),
    "use_beam_search": _refused("beam search is not served; use n and choose among the choices", False),
    "length_penalty": _refused("it belongs to beam search, which is not served", 1, 1.0),
    "early_stopping": _refused("it belongs to beam search, which is not served", False),
    "truncate_prompt_tokens": _refused("a prompt is never cut silently; shorten it before sending"),
    "truncation_side": _refused("a prompt is never cut silently; shorten it before sending"),
    "prompt_logprobs": _refused("log-probabilities of the prompt are " + _LATER),
    "logprob_token_ids": _refused("use logprobs and top_logprobs"),
    "allowed_token_ids": _refused("use logit_bias to favour or ban tokens"),
    "bad_words": _refused("use logit_bias with -100 to ban tokens", []),
    "documents": _refused("put the documents into the messages, or into chat_template_kwargs"),
    "chat_template": _refused("the model's own template is used; chat_template_kwargs can set its variables"),
    "media_io_kwargs": _refused(_TEXT_ONLY),
    "mm_processor_kwargs": _refused(_TEXT_ONLY),
    "prompt_embeds": _refused("send the prompt as text or token ids"),
    "include_reasoning": _refused("reasoning is " + _LATER, True),
    "thinking_token_budget": _refused("use chat_template_kwargs, if the model's template has a switch"),
    "spaces_between_special_tokens": _refused("the text is the exact concatenation of the tokens", True),
    "detokenize": _refused("text is always returned", True),
    "return_token_ids": _refused("token ids are " + _LATER, False),
    "return_tokens_as_token_ids": _refused("token ids are " + _LATER, False),
    "return_token_offsets": _refused(_LATER, False),
    "return_prompt_text": _refused("completions can echo the prompt", False),
    "repetition_detection": _refused("use the penalties"),
    "stream_interval": _refused("every token is sent as soon as it is there", 1),
    "vllm_xargs": _refused("it is for plug-ins of another engine"),
    "kv_transfer_params": _refused("it is for another engine's disaggregated serving"),
    "ec_transfer_params": _refused("it is for another engine's disaggregated serving"),
    "session_id": _refused("caching is automatic; use cache_salt to keep sessions apart"),
    "watermarking": _refused(_LATER),
    # SGLang
    "max_new_tokens": _refused("use max_tokens"),
    "min_new_tokens": _refused("use min_tokens"),
    "sampling_seed": _refused("use seed"),
    "sampling_params": _refused("put its fields into the request itself"),
    "regex": _refused(_STRUCTURED),
    "ebnf": _refused(_STRUCTURED),
    "stop_regex": _refused("use stop, with fixed strings"),
    "no_stop_trim": _refused("use include_stop_str_in_output", False),
    "rid": _refused("use request_id"),
    "extra_key": _refused("use cache_salt"),
    "lora_path": _refused("adapters are " + _LATER),
    "session_params": _refused("send the whole conversation; its prefix is cached"),
    "separate_reasoning": _refused("reasoning is " + _LATER, True),
    "stream_reasoning": _refused("reasoning is " + _LATER, True),
    "custom_logit_processor": _refused("use logit_bias"),
    "custom_params": _refused("use logit_bias"),
    "data_parallel_rank": _refused("there is one engine behind this server"),
    "return_hidden_states": _refused("hidden states are " + _LATER, False),
    "return_meta_info": _refused("usage and finish_reason are always there", False),
    "input_ids": _refused("send token ids as the prompt of /v1/completions"),
    "text": _refused("send the text as prompt of /v1/completions"),
    # llama.cpp, and what took its names
    "n_predict": _refused("use max_tokens"),
    "num_predict": _refused("use max_tokens"),
    "num_ctx": _refused("the context length is the server's: --max-model-len"),
    "repeat_penalty": _refused("use repetition_penalty"),
    "repeat_last_n": _refused("repetition_penalty looks at the whole text"),
    "cache_prompt": _refused("prefixes are always cached; use cache_salt to keep them apart", True),
    "n_keep": _refused("a prompt is never cut silently; shorten it before sending"),
    "n_probs": _refused("use logprobs (and top_logprobs for chat)", 0),
    "id_slot": _refused("slots are not addressable; prefixes are cached automatically", -1),
    "grammar": _refused(_STRUCTURED),
    "json_schema": _refused(_STRUCTURED),
    "samplers": _refused("the order is fixed: penalties, bias, temperature, top_k, top_p, min_p"),
    "typical_p": _refused(_LLAMA_SAMPLER, 1, 1.0),
    "tfs_z": _refused(_LLAMA_SAMPLER, 1, 1.0),
    "top_a": _refused(_LLAMA_SAMPLER, 0),
    "top_n_sigma": _refused(_LLAMA_SAMPLER, -1),
    "mirostat": _refused(_LLAMA_SAMPLER, 0),
    "mirostat_tau": _refused(_LLAMA_SAMPLER),
    "mirostat_eta": _refused(_LLAMA_SAMPLER),
    "dynatemp_range": _refused(_LLAMA_SAMPLER, 0),
    "xtc_probability": _refused(_LLAMA_SAMPLER, 0),
    "dry_multiplier": _refused(_LLAMA_SAMPLER, 0),
    "return_progress": _refused(_LATER, False),
    "timings_per_token": _refused(_LATER, False),
    "reasoning_format": _refused("reasoning is " + _LATER, "none"),
    # Text Generation Inference, Ollama, transformers
    "inputs": _refused("use prompt, or messages for a chat"),
    "parameters": _refused("put its fields into the request itself"),
    "options": _refused("put its fields into the request itself"),
    "do_sample": _refused("use temperature: 0 for greedy decoding", True),
    "max_length": _refused("use max_tokens, which counts the answer alone"),
    "num_beams": _refused("beam search is not served; use n and choose among the choices", 1),
    "num_return_sequences": _refused("use n"),
    "watermark": _refused(_LATER, False),
    "decoder_input_details": _refused(_LATER, False),
    "keep_alive": _refused("the model stays loaded as long as the server runs"),
    "format": _refused(_STRUCTURED),
}
"""Names that mean something to another engine: sending one expects an effect, so it is not dropped in silence."""

SIBLING_FIELDS: Mapping[str, str] = {
    "prompt": "use messages, or /v1/completions",
    "messages": "use prompt, or /v1/chat/completions",
    "input": "use messages (or prompt for /v1/completions)",
}
"""Fields of a sibling endpoint that people mix up."""
