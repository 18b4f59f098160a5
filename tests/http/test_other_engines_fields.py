"""Every request field of vLLM, SGLang and llama.cpp works, is without effect, or is refused with advice."""

import pytest

from limelight.http.protocol.fields.chat import CHAT_FIELDS
from limelight.http.protocol.fields.completions import COMPLETION_FIELDS
from limelight.http.protocol.fields.field import Effect
from limelight.http.protocol.fields.other_engines import OTHER_ENGINES

VLLM_SAMPLING = """
    n presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k min_p seed stop
    stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids
    prompt_logprob_start logprob_token_ids flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens
    include_stop_str_in_output output_kind stream_interval skip_clone structured_outputs logit_bias allowed_token_ids
    extra_args bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection
    routed_experts_prompt_start trace_decode_token_ids
"""
VLLM_REQUEST = """
    model stream stream_options user use_beam_search beam_width length_penalty truncate_prompt_tokens truncation_side
    echo add_special_tokens prompt_embeds priority request_id session_id return_tokens_as_token_ids return_token_ids
    return_token_offsets return_prompt_text cache_salt kv_transfer_params ec_transfer_params vllm_xargs
    media_io_kwargs mm_processor_kwargs mm_payload return_mm_kwargs
"""
CHAT_ONLY = """
    messages max_completion_tokens top_logprobs response_format tools tool_choice parallel_tool_calls reasoning_effort
    include_reasoning add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
"""
COMPLETION_ONLY = "prompt suffix"
SGLANG = """
    regex ebnf stop_regex no_stop_trim lora_path session_params separate_reasoning stream_reasoning
    custom_logit_processor custom_params rid extra_key data_parallel_rank return_hidden_states input_ids
    return_meta_info max_new_tokens min_new_tokens sampling_seed
"""
LLAMA_CPP = """
    n_predict repeat_penalty repeat_last_n cache_prompt n_keep n_probs id_slot grammar json_schema samplers typical_p
    top_n_sigma mirostat mirostat_tau mirostat_eta dynatemp_range xtc_probability dry_multiplier return_progress
    timings_per_token reasoning_format
"""

SHARED = VLLM_SAMPLING + VLLM_REQUEST + SGLANG + LLAMA_CPP


@pytest.mark.parametrize(
    ("fields", "names"),
    [(CHAT_FIELDS, SHARED + CHAT_ONLY), (COMPLETION_FIELDS, SHARED + COMPLETION_ONLY)],
    ids=["chat", "completions"],
)
def test_every_name_of_the_peers_has_its_row(fields, names):
    assert {name for name in names.split() if name not in fields and name not in OTHER_ENGINES} == set()


def test_whatever_is_refused_says_what_to_do_instead():
    for fields in (CHAT_FIELDS, COMPLETION_FIELDS, OTHER_ENGINES):
        for name, field in fields.items():
            if field.effect is Effect.REFUSED:
                assert len(field.note.split()) >= 2, name


def test_no_name_is_both_ours_and_another_engines():
    for fields in (CHAT_FIELDS, COMPLETION_FIELDS):
        assert not fields.keys() & OTHER_ENGINES.keys()
