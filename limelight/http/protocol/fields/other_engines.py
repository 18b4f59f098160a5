"""Names that mean something to another engine or to a sibling endpoint, with what to use instead."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, refused
from limelight.http.protocol.fields.wording import TEXT_ONLY

_LATER = "not served in this release; leave it out"
_LLAMA_SAMPLER = "this sampler is not served; use temperature, top_p, top_k and min_p"

OTHER_ENGINES: Mapping[str, Field] = {
    # vLLM
    "guided_json": refused("use structured_outputs: {json: ...}"),
    "guided_regex": refused("use structured_outputs: {regex: ...}"),
    "guided_choice": refused("use structured_outputs: {choice: ...}"),
    "guided_grammar": refused("use structured_outputs: {grammar: ...}"),
    "guided_decoding_backend": refused("there is one backend; leave it out"),
    "guided_whitespace_pattern": refused("use structured_outputs: {whitespace_pattern: ...}"),
    "structural_tag": refused("use structured_outputs: {structural_tag: ...}"),
    "use_beam_search": refused("beam search is not served; use n and choose among the choices", False),
    "length_penalty": refused("it belongs to beam search, which is not served", 1, 1.0),
    "early_stopping": refused("it belongs to beam search, which is not served", False),
    "media_io_kwargs": refused(TEXT_ONLY),
    "mm_processor_kwargs": refused(TEXT_ONLY),
    "mm_payload": refused(TEXT_ONLY),
    "return_mm_kwargs": refused(TEXT_ONLY, False),
    "prompt_embeds": refused("send the prompt as text or token ids"),
    "vllm_xargs": refused("it is for plug-ins of another engine"),
    "kv_transfer_params": refused("it is for another engine's disaggregated serving"),
    "ec_transfer_params": refused("it is for another engine's disaggregated serving"),
    "watermarking": refused("answers are not watermarked; leave it out", False),
    "routed_experts_prompt_start": refused("which experts were chosen is not told; leave it out", 0),
    "trace_decode_token_ids": refused("use stream with return_token_ids"),
    "flat_logprobs": refused("log-probabilities have the one form of the API; leave it out", False),
    "skip_clone": refused("it is about the inside of another engine; leave it out", False),
    "output_kind": refused("use stream"),
    "prompt_logprob_token_ids": refused("use logprobs with echo in /v1/completions, which scores the whole prompt"),
    "prompt_logprob_start": refused("use logprobs with echo in /v1/completions, which scores the whole prompt", 0),
    "extra_args": refused("it is for plug-ins of another engine"),
    "beam_width": refused("beam search is not served; use n and choose among the choices", 1),
    # SGLang
    "max_new_tokens": refused("use max_tokens"),
    "min_new_tokens": refused("use min_tokens"),
    "sampling_seed": refused("use seed"),
    "sampling_params": refused("put its fields into the request itself"),
    "regex": refused("use structured_outputs: {regex: ...}"),
    "ebnf": refused("use structured_outputs: {grammar: ...}"),
    "stop_regex": refused("use stop, with fixed strings"),
    "no_stop_trim": refused("use include_stop_str_in_output", False),
    "rid": refused("use request_id"),
    "extra_key": refused("use cache_salt"),
    "lora_path": refused("adapters are " + _LATER),
    "session_params": refused("send the whole conversation; its prefix is cached"),
    "separate_reasoning": refused(
        "use include_reasoning; it is kept apart unless the server runs with --reasoning-parser none", True
    ),
    "stream_reasoning": refused("reasoning is streamed as it comes", True),
    "custom_logit_processor": refused("use logit_bias"),
    "custom_params": refused("use logit_bias"),
    "data_parallel_rank": refused("there is one engine behind this server"),
    "return_hidden_states": refused("hidden states are " + _LATER, False),
    "return_meta_info": refused("usage and finish_reason are always there", False),
    "input_ids": refused("send token ids as the prompt of /v1/completions"),
    "text": refused("send the text as prompt of /v1/completions"),
    # llama.cpp, and what took its names
    "n_predict": refused("use max_tokens"),
    "num_predict": refused("use max_tokens"),
    "num_ctx": refused("the context length is the server's: --max-model-len"),
    "repeat_penalty": refused("use repetition_penalty"),
    "repeat_last_n": refused("repetition_penalty looks at the whole text"),
    "cache_prompt": refused("prefixes are always cached; use cache_salt to keep them apart", True),
    "n_keep": refused("a prompt is never cut silently; shorten it before sending"),
    "n_probs": refused("use logprobs (and top_logprobs for chat)", 0),
    "id_slot": refused("slots are not addressable; prefixes are cached automatically", -1),
    "grammar": refused("use structured_outputs: {grammar: ...}"),
    "json_schema": refused("use structured_outputs: {json: ...}"),
    "samplers": refused("the order is fixed: penalties, bias, temperature, top_k, top_p, min_p"),
    "typical_p": refused(_LLAMA_SAMPLER, 1, 1.0),
    "tfs_z": refused(_LLAMA_SAMPLER, 1, 1.0),
    "top_a": refused(_LLAMA_SAMPLER, 0),
    "top_n_sigma": refused(_LLAMA_SAMPLER, -1),
    "mirostat": refused(_LLAMA_SAMPLER, 0),
    "mirostat_tau": refused(_LLAMA_SAMPLER),
    "mirostat_eta": refused(_LLAMA_SAMPLER),
    "dynatemp_range": refused(_LLAMA_SAMPLER, 0),
    "xtc_probability": refused(_LLAMA_SAMPLER, 0),
    "dry_multiplier": refused(_LLAMA_SAMPLER, 0),
    "return_progress": refused(_LATER, False),
    "timings_per_token": refused("use return_timings", False),
    "reasoning_format": refused("reasoning is kept apart unless the server runs with --reasoning-parser none", "auto"),
    # Text Generation Inference, Ollama, transformers
    "inputs": refused("use prompt, or messages for a chat"),
    "parameters": refused("put its fields into the request itself"),
    "options": refused("put its fields into the request itself"),
    "do_sample": refused("use temperature: 0 for greedy decoding", True),
    "max_length": refused("use max_tokens, which counts the answer alone"),
    "num_beams": refused("beam search is not served; use n and choose among the choices", 1),
    "num_return_sequences": refused("use n"),
    "watermark": refused(_LATER, False),
    "decoder_input_details": refused(_LATER, False),
    "keep_alive": refused("the model stays loaded as long as the server runs"),
    "format": refused("use response_format, or structured_outputs"),
}
"""Names that mean something to another engine: sending one expects an effect, so it is not dropped in silence."""

SIBLING_FIELDS: Mapping[str, str] = {
    "prompt": "use messages, or /v1/completions",
    "messages": "use prompt, or /v1/chat/completions",
    "input": "use messages (or prompt for /v1/completions)",
}
"""Fields of a sibling endpoint that people mix up."""
