"""One tiny random model of every architecture that Limelight has layers for, each with what sets its family apart."""

from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import (
    AutoModelForImageTextToText,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.models.tiny_models import SMALL, tiny_model, with_random_weights

WINDOW = {"sliding_window": 9}
QWEN_WINDOW = {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": True}
GEMMA = {**WINDOW, "head_dim": 12, "query_pre_attn_scalar": 20, "layer_types": ["sliding_attention", "full_attention"]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 4.0, 9.0],
}


def _gemma3_with_images(**settings: Any) -> Any:
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 8,
        "patch_size": 4,
    }
    config = Gemma3Config(
        text_config=Gemma3TextConfig(**{**SMALL, **GEMMA, **settings}),
        vision_config={"model_type": "siglip_vision_model", **vision},
        mm_tokens_per_image=4,
        image_token_index=96,
        tie_word_embeddings=False,
    )
    return with_random_weights(AutoModelForImageTextToText.from_config(config))


TINY_FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": partial(tiny_model, LlamaConfig),
    "mistral": partial(tiny_model, MistralConfig, **WINDOW),
    "qwen2": partial(tiny_model, Qwen2Config, **QWEN_WINDOW),
    "qwen3": partial(tiny_model, Qwen3Config, head_dim=12),
    "qwen2_moe": partial(tiny_model, Qwen2MoeConfig, shared_expert_intermediate_size=24, **EXPERTS),
    "qwen3_moe": partial(tiny_model, Qwen3MoeConfig, head_dim=12, **EXPERTS),
    "gpt_oss": partial(
        tiny_model,
        GptOssConfig,
        num_local_experts=6,
        num_experts_per_tok=2,
        head_dim=16,
        rope_parameters=YARN,
        **WINDOW,
    ),
    "gemma": partial(tiny_model, GemmaConfig, head_dim=12),
    "gemma2": partial(tiny_model, Gemma2Config, **GEMMA),
    "gemma3_text": partial(tiny_model, Gemma3TextConfig, **GEMMA),
    "gemma3": _gemma3_with_images,
    # Within the original context: transformers changes its factors as a sequence grows beyond it.
    "phi3": partial(
        tiny_model,
        Phi3Config,
        pad_token_id=0,
        eos_token_id=1,
        rope_parameters=LONGROPE,
        original_max_position_embeddings=128,
    ),
}
"""model_type -> the model; keyword arguments are settings of its configuration."""
