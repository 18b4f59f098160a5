"""What every endpoint that generates from a prompt or a chat has in common."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, no_effect, works
from limelight.http.protocol.fields.wording import CACHING, IDENTITY

DRAW_FIELDS: Mapping[str, Field] = {
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
    "bad_words": works("words that never occur in the answer"),
    "allowed_token_ids": works("only these tokens are drawn, and those that end the answer"),
    "thinking_token_budget": works("tokens of reasoning after which its end is forced; -1 is no budget"),
    "skip_reading_prefix_cache": works("computes the whole prompt anew"),
    "priority": works("lower is served earlier"),
    "max_queue_ms": works("milliseconds until a step must have worked on the request, else 504"),
    "max_ttft_ms": works("milliseconds until its first token must be there, else 504"),
    "max_total_ms": works(
        "milliseconds after which it ends with what there is, finish_reason length and finish_details deadline; 504 "
        "without a token"
    ),
    "cache_salt": works("only requests with the same salt share cached prefixes"),
    "return_timings": works("timings: milliseconds that the parts took, in the answer or at the end of a stream"),
    "request_id": works("echoed in the x-request-id header"),
    "session_id": no_effect(CACHING),
    "spaces_between_special_tokens": no_effect("the text is the exact concatenation of the tokens"),
    "user": no_effect(IDENTITY),
}
"""How tokens are drawn, when an answer ends, and how a request is treated: the same wherever an answer is generated."""

GENERATION_FIELDS: Mapping[str, Field] = {
    **DRAW_FIELDS,
    "model": works(),
    "n": works("1 to 128 choices"),
    "stream": works(),
    "stream_options": works("include_usage, continuous_usage_stats; only with stream"),
    "max_tokens": works(),
    "logprobs": works(),
    "prompt_logprobs": works("0 to 20 best tokens at each position of the prompt; not with stream"),
    "logprob_token_ids": works("up to 128 tokens whose log-probabilities are told at each position, beside the best"),
    "return_tokens_as_token_ids": works("names tokens in logprobs by their ids: token_id:17"),
    "structured_outputs": works("json, regex, choice, grammar, json_object or structural_tag"),
    "repetition_detection": works(
        "max_pattern_size, min_pattern_size, min_count: ends an answer that repeats itself, with finish_reason stop "
        "and finish_details repetition"
    ),
    "detokenize": works("false: no text, for those who read token_ids; not together with stop"),
    "stream_interval": works("tokens between the chunks of a stream; the first ones and the last never wait"),
    "truncate_prompt_tokens": works(
        "keeps so many tokens of a longer prompt; -1 as many as leave room for max_tokens; without it a prompt that is "
        "too long is refused"
    ),
    "truncation_side": works("left drops the beginning of the prompt, right its end; left unless given"),
    "return_token_ids": works("token_ids of each choice and chunk, and prompt_token_ids"),
    "return_prompt_text": works("prompt_text: the rendered prompt, before anything is cut from it; null for token ids"),
    "return_token_offsets": works(
        "prompt_token_offsets: start and end of each prompt token in prompt_text, in characters; null where the "
        "tokenizer has changed the text"
    ),
}
