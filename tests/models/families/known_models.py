"""What well-known models say of themselves in `config.json`, in the words of the time when they were published, and
what is known of them: the number of their parameters, their heads, what their layers see.
"""

from typing import Any

import msgspec


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A published model.

    Attributes:
        parameters: of the text model, a tied table counted once.
        kv_heads, head_dim: as cached.
        context: what it is meant for, in tokens.
        eos: ids that end a text, those of `generation_config.json` included.
        windows: sliding window -> number of layers that have it; layers that see everything are not listed.
        rope: theta and the kind of stretching of layers that see everything.
        tied: the head is the embedding's table.
        biases: what has biases: "qkv", "output", "mlp".
        longest: how far `max_model_len` may be raised, if that is not `context`.
        native: it has layers of our own.
    """

    config: dict[str, Any]
    parameters: int
    kv_heads: int
    head_dim: int
    context: int
    eos: frozenset[int]
    rope: tuple[float, str] = (10_000.0, "none")
    windows: dict[int, int] = {}
    tied: bool = False
    biases: frozenset[str] = frozenset()
    longest: int | None = None
    native: bool = True
    generation: dict[str, Any] = {}


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "tie_word_embeddings": False,
        "transformers_version": "4.43.0.dev0",
        **more,
    }


def _like(model_type: str, class_name: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return config | {"model_type": model_type, "architectures": [class_name]} | more


def _llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


def _qwen(model_type: str, *sizes: int, **more: Any) -> dict[str, Any]:
    name = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}[model_type]
    usual = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "bos_token_id": 151643, "eos_token_id": 151645,
             "attention_dropout": 0.0, "use_sliding_window": False}  # fmt: skip
    return _like(model_type, name, _llama(*sizes), **(usual | more))


def _mistral(*sizes: int, **more: Any) -> dict[str, Any]:
    return _like("mistral", "MistralForCausalLM", _llama(*sizes), bos_token_id=1, eos_token_id=2, **more)


def _gemma2(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int, scalar: int
) -> dict[str, Any]:
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "bos_token_id": 2,
        "cache_implementation": "hybrid",
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "head_dim": head_dim,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "pad_token_id": 0,
        "query_pre_attn_scalar": scalar,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "torch_dtype": "float32",
        "vocab_size": 256000,
    }


def _gemma3_text(hidden: int, inner: int, layers: int, window: int, context: int) -> dict[str, Any]:
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "cache_implementation": "hybrid",
        "eos_token_id": [1, 106],
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": context,
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": window,
        "torch_dtype": "bfloat16",
        "vocab_size": 262144,
    }


def _gemma3(**text: Any) -> dict[str, Any]:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            **text,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }


def _phi(*sizes: int, **more: Any) -> dict[str, Any]:
    usual = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attention_bias": False, "attention_dropout": 0.0,
             "rope_theta": 10000.0, "rope_scaling": None, "bos_token_id": 1, "eos_token_id": 32000,
             "original_max_position_embeddings": 4096}  # fmt: skip
    return _like("phi3", "Phi3ForCausalLM", _llama(*sizes), **(usual | more))


def _own_code(model: str) -> dict[str, str]:
    return {
        "AutoConfig": f"configuration_{model}.Phi3Config",
        "AutoModelForCausalLM": f"modeling_{model}.Phi3ForCausalLM",
    }


def _longrope(pairs: int) -> dict[str, Any]:
    return {
        "type": "longrope",
        "short_factor": [1.0 + 0.02 * pair for pair in range(pairs)],
        "long_factor": [1.0 + 1.3 * pair for pair in range(pairs)],
    }


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "num_local_experts": experts,
        "output_router_logits": False,
        "pad_token_id": 199999,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0",
        "use_cache": True,
        "vocab_size": 201088,
    }


LLAMA31_8B = _llama(
    4096, 14336, 32, 32, 8, 128256,
    attention_bias=False, mlp_bias=False, bos_token_id=128000, eos_token_id=[128001, 128008, 128009],
    max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=_llama3_rope(8.0),
)  # fmt: skip
LLAMA32 = {
    "attention_bias": False, "mlp_bias": False, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": _llama3_rope(32.0),
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA3_EOS = frozenset({128001, 128008, 128009})
LLAMA3_ROPE = (500_000.0, "llama3")
QWEN_EOS = frozenset({151645, 151643})
QWEN_GENERATION = {"eos_token_id": [151645, 151643], "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
QWEN_ROPE = (1e6, "none")
QKV = frozenset({"qkv"})

KNOWN_MODELS: dict[str, KnownModel] = {
    "Llama-2-7b": KnownModel(
        config=_llama(4096, 11008, 32, 32, 32, 32000, bos_token_id=1, eos_token_id=2, max_position_embeddings=4096,
                      rope_scaling=None, torch_dtype="float16"),
        parameters=6_738_415_616, kv_heads=32, head_dim=128, context=4096, eos=frozenset({2}),
    ),
    "Llama-3.1-8B": KnownModel(
        config=LLAMA31_8B, parameters=8_030_261_248, kv_heads=8, head_dim=128, context=131072, eos=LLAMA3_EOS,
        rope=LLAMA3_ROPE,
    ),
    "Llama-3.2-1B": KnownModel(
        config=_llama(2048, 8192, 16, 32, 8, 128256, head_dim=64, **LLAMA32),
        parameters=1_235_814_400, kv_heads=8, head_dim=64, context=131072, eos=LLAMA3_EOS, rope=LLAMA3_ROPE, tied=True,
    ),
    "Llama-3.2-3B": KnownModel(
        config=_llama(3072, 8192, 28, 24, 8, 128256, head_dim=128, **LLAMA32),
        parameters=3_212_749_824, kv_heads=8, head_dim=128, context=131072, eos=LLAMA3_EOS, rope=LLAMA3_ROPE, tied=True,
    ),
    "TinyLlama-1.1B-Chat": KnownModel(
        config=_llama(2048, 5632, 22, 32, 4, 32000, bos_token_id=1, eos_token_id=2, max_position_embeddings=2048,
                      attention_bias=False, rope_theta=10000.0, rope_scaling=None),
        parameters=1_100_048_384, kv_heads=4, head_dim=64, context=2048, eos=frozenset({2}),
    ),
    "SmolLM2-135M": KnownModel(
        config=_llama(576, 1536, 30, 9, 3, 49152, bos_token_id=1, eos_token_id=2, pad_token_id=2, attention_bias=False,
                      max_position_embeddings=8192, rope_interleaved=False, rope_scaling=None, rope_theta=100000,
                      is_llama_config=True, tie_word_embeddings=True),
        parameters=134_515_008, kv_heads=3, head_dim=64, context=8192, eos=frozenset({2}), rope=(1e5, "none"),
        tied=True,
    ),
    "DeepSeek-R1-Distill-Llama-8B": KnownModel(
        config=LLAMA31_8B | {"eos_token_id": 128001}, parameters=8_030_261_248, kv_heads=8, head_dim=128,
        context=131072, eos=frozenset({128001}), rope=LLAMA3_ROPE,
        generation={"_from_model_config": True, "bos_token_id": 128000, "eos_token_id": 128001, "do_sample": True,
                    "temperature": 0.6, "top_p": 0.95},
    ),
    "Mistral-7B-v0.1": KnownModel(
        config=_mistral(4096, 14336, 32, 32, 8, 32000, max_position_embeddings=32768, rope_theta=10000.0,
                        sliding_window=4096),
        parameters=7_241_732_096, kv_heads=8, head_dim=128, context=32768, eos=frozenset({2}), windows={4096: 32},
    ),
    "Mistral-7B-v0.3": KnownModel(
        config=_mistral(4096, 14336, 32, 32, 8, 32768, max_position_embeddings=32768, rope_theta=1000000.0,
                        sliding_window=None, attention_dropout=0.0),
        parameters=7_248_023_552, kv_heads=8, head_dim=128, context=32768, eos=frozenset({2}), rope=(1e6, "none"),
    ),
    "Mistral-Nemo-12B": KnownModel(
        config=_mistral(5120, 14336, 40, 32, 8, 131072, head_dim=128, max_position_embeddings=1024000,
                        rope_theta=1000000.0, sliding_window=None, attention_dropout=0.0),
        parameters=12_247_782_400, kv_heads=8, head_dim=128, context=1024000, eos=frozenset({2}), rope=(1e6, "none"),
    ),
    "Ministral-8B": KnownModel(
        config=_mistral(4096, 12288, 36, 32, 8, 131072, head_dim=128, max_position_embeddings=32768,
                        rope_theta=100000000.0, sliding_window=32768, attention_dropout=0.0),
        parameters=8_019_808_256, kv_heads=8, head_dim=128, context=32768, eos=frozenset({2}), rope=(1e8, "none"),
        windows={32768: 36},
    ),
    "Qwen2-0.5B": KnownModel(
        config=_qwen("qwen2", 896, 4864, 24, 14, 2, 151936, eos_token_id=151643, max_position_embeddings=131072,
                     max_window_layers=24, sliding_window=131072, tie_word_embeddings=True),
        parameters=494_032_768, kv_heads=2, head_dim=64, context=131072, eos=frozenset({151643}), rope=QWEN_ROPE,
        tied=True, biases=QKV,
    ),
    "Qwen2.5-7B-Instruct": KnownModel(
        config=_qwen("qwen2", 3584, 18944, 28, 28, 4, 152064, max_position_embeddings=32768, max_window_layers=28,
                     sliding_window=131072),
        parameters=7_615_616_512, kv_heads=4, head_dim=128, context=32768, eos=QWEN_EOS, rope=QWEN_ROPE, biases=QKV,
        generation=QWEN_GENERATION,
    ),
    "Qwen2.5-7B-Instruct-1M": KnownModel(
        config=_qwen("qwen2", 3584, 18944, 28, 28, 4, 152064, max_position_embeddings=1010000, max_window_layers=28,
                     sliding_window=32768, rope_theta=10000000.0,
                     dual_chunk_attention_config={"chunk_size": 262144, "local_size": 8192,
                                                  "original_max_position_embeddings": 262144}),
        parameters=7_615_616_512, kv_heads=4, head_dim=128, context=262144, eos=QWEN_EOS, rope=(1e7, "none"),
        biases=QKV, generation=QWEN_GENERATION,
    ),
    "QwQ-32B": KnownModel(
        config=_qwen("qwen2", 5120, 27648, 64, 40, 8, 152064, rms_norm_eps=1e-5, max_position_embeddings=40960,
                     max_window_layers=64, sliding_window=32768),
        parameters=32_763_876_352, kv_heads=8, head_dim=128, context=40960, eos=QWEN_EOS, rope=QWEN_ROPE, biases=QKV,
        generation=QWEN_GENERATION,
    ),
    "DeepSeek-R1-Distill-Qwen-1.5B": KnownModel(
        config=_qwen("qwen2", 1536, 8960, 28, 12, 2, 151936, eos_token_id=151643, max_position_embeddings=131072,
                     max_window_layers=21, sliding_window=4096, rope_theta=10000, use_mrope=False),
        parameters=1_777_088_000, kv_heads=2, head_dim=128, context=131072, eos=frozenset({151643}), biases=QKV,
    ),
    "Qwen3-0.6B": KnownModel(
        config=_qwen("qwen3", 1024, 3072, 28, 16, 8, 151936, attention_bias=False, head_dim=128,
                     max_position_embeddings=40960, max_window_layers=28, rope_scaling=None, sliding_window=None,
                     tie_word_embeddings=True),
        parameters=596_049_920, kv_heads=8, head_dim=128, context=40960, eos=QWEN_EOS, rope=QWEN_ROPE, tied=True,
        generation=QWEN_GENERATION,
    ),
    "Qwen3-4B": KnownModel(
        config=_qwen("qwen3", 2560, 9728, 36, 32, 8, 151936, attention_bias=False, head_dim=128,
                     max_position_embeddings=40960, max_window_layers=36, rope_scaling=None, sliding_window=None,
                     tie_word_embeddings=True),
        parameters=4_022_468_096, kv_heads=8, head_dim=128, context=40960, eos=QWEN_EOS, rope=QWEN_ROPE, tied=True,
        generation=QWEN_GENERATION,
    ),
    "Qwen3-8B, stretched as its card says": KnownModel(
        config=_qwen("qwen3", 4096, 12288, 36, 32, 8, 151936, attention_bias=False, head_dim=128,
                     max_position_embeddings=40960, max_window_layers=36, sliding_window=None,
                     rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
        parameters=8_190_735_360, kv_heads=8, head_dim=128, context=40960, eos=QWEN_EOS, rope=(1e6, "yarn"),
        longest=131072, generation=QWEN_GENERATION,
    ),
    "Qwen3-30B-A3B": KnownModel(
        config=_qwen("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, attention_bias=False, head_dim=128,
                     max_position_embeddings=40960, max_window_layers=48, rope_scaling=None, sliding_window=None,
                     decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True,
                     num_experts=128, num_experts_per_tok=8, output_router_logits=False, router_aux_loss_coef=0.001),
        parameters=30_532_122_624, kv_heads=4, head_dim=128, context=40960, eos=QWEN_EOS, rope=QWEN_ROPE,
        generation=QWEN_GENERATION,
    ),
    "gemma-2-2b": KnownModel(
        config=_gemma2(2304, 9216, 26, 8, 4, 256, 256), parameters=2_614_341_888, kv_heads=4, head_dim=256,
        context=8192, eos=frozenset({1}), windows={4096: 13}, tied=True,
    ),
    "gemma-2-9b": KnownModel(
        config=_gemma2(3584, 14336, 42, 16, 8, 256, 256), parameters=9_241_705_984, kv_heads=8, head_dim=256,
        context=8192, eos=frozenset({1, 107}), windows={4096: 21}, tied=True, generation={"eos_token_id": [1, 107]},
    ),
    "gemma-2-27b": KnownModel(
        config=_gemma2(4608, 36864, 46, 32, 16, 128, 144), parameters=27_227_128_320, kv_heads=16, head_dim=128,
        context=8192, eos=frozenset({1}), windows={4096: 23}, tied=True,
    ),
    "gemma-3-270m": KnownModel(
        config=_gemma3_text(640, 2048, 18, 512, 32768) | {
            "_sliding_window_pattern": 6, "use_bidirectional_attention": False, "eos_token_id": 1,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        },
        parameters=268_098_176, kv_heads=1, head_dim=256, context=32768, eos=frozenset({1}), rope=(1e6, "none"),
        windows={512: 15}, tied=True,
    ),
    "gemma-3-1b": KnownModel(
        config=_gemma3_text(1152, 6912, 26, 512, 32768) | {"sliding_window_pattern": 6},
        parameters=999_885_952, kv_heads=1, head_dim=256, context=32768, eos=frozenset({1, 106}), rope=(1e6, "none"),
        windows={512: 22}, tied=True,
    ),
    "gemma-3-4b": KnownModel(
        config=_gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34),
        parameters=3_880_263_168, kv_heads=4, head_dim=256, context=131072, eos=frozenset({1, 106}),
        rope=(1e6, "linear"), windows={1024: 29}, tied=True,
    ),
    "gemma-3-12b": KnownModel(
        config=_gemma3(hidden_size=3840, intermediate_size=15360, num_attention_heads=16, num_hidden_layers=48,
                       num_key_value_heads=8),
        parameters=11_766_034_176, kv_heads=8, head_dim=256, context=131072, eos=frozenset({1, 106}),
        rope=(1e6, "linear"), windows={1024: 40}, tied=True,
    ),
    "gemma-3-27b": KnownModel(
        config=_gemma3(head_dim=128, hidden_size=5376, intermediate_size=21504, num_attention_heads=32,
                       num_hidden_layers=62, num_key_value_heads=16, query_pre_attn_scalar=168),
        parameters=27_009_346_304, kv_heads=16, head_dim=128, context=131072, eos=frozenset({1, 106}),
        rope=(1e6, "linear"), windows={1024: 52}, tied=True,
    ),
    "Phi-3-mini-4k": KnownModel(
        config=_phi(3072, 8192, 32, 32, 32, 32064, max_position_embeddings=4096, sliding_window=2047,
                    auto_map=_own_code("phi3")),
        parameters=3_821_079_552, kv_heads=32, head_dim=96, context=4096,
        eos=frozenset({32000, 32001, 32007}), windows={2047: 32}, generation={"eos_token_id": [32000, 32001, 32007]},
    ),
    "Phi-3-mini-128k": KnownModel(
        config=_phi(3072, 8192, 32, 32, 32, 32064, max_position_embeddings=131072, sliding_window=262144,
                    rope_scaling=_longrope(48), auto_map=_own_code("phi3")),
        parameters=3_821_079_552, kv_heads=32, head_dim=96, context=131072, eos=frozenset({32000}),
        rope=(1e4, "longrope"), windows={262144: 32},
    ),
    "Phi-3.5-mini": KnownModel(
        config=_phi(3072, 8192, 32, 32, 32, 32064, max_position_embeddings=131072, sliding_window=262144,
                    rope_scaling=_longrope(48), auto_map=_own_code("phi3"), tie_word_embeddings=False),
        parameters=3_821_079_552, kv_heads=32, head_dim=96, context=131072, eos=frozenset({32000}),
        rope=(1e4, "longrope"), windows={262144: 32},
    ),
    "phi-4": KnownModel(
        config=_phi(5120, 17920, 40, 40, 10, 100352, max_position_embeddings=16384, rope_theta=250000,
                    original_max_position_embeddings=16384, sliding_window=None, bos_token_id=100257,
                    eos_token_id=100265, pad_token_id=100349),
        parameters=14_659_507_200, kv_heads=10, head_dim=128, context=16384, eos=frozenset({100265}),
        rope=(250_000.0, "none"),
    ),
    "Phi-4-mini": KnownModel(
        config=_phi(3072, 8192, 32, 24, 8, 200064, max_position_embeddings=131072, sliding_window=262144,
                    rope_scaling=_longrope(48), partial_rotary_factor=0.75, full_attn_mod=1, interpolate_factor=1,
                    lm_head_bias=False, mlp_bias=False, bos_token_id=199999, eos_token_id=199999, pad_token_id=199999,
                    tie_word_embeddings=True, auto_map=_own_code("phi3")),
        parameters=3_836_021_760, kv_heads=8, head_dim=128, context=131072, eos=frozenset({199999, 200020}),
        rope=(1e4, "longrope"), windows={262144: 32}, tied=True, generation={"eos_token_id": [200020, 199999]},
    ),
    "gpt-oss-20b": KnownModel(
        config=_gpt_oss(24, 32), parameters=20_914_757_184, kv_heads=8, head_dim=64, context=131072,
        eos=frozenset({200002, 199999, 200012}), rope=(150_000.0, "yarn"), windows={128: 12},
        biases=frozenset({"qkv", "output", "mlp"}), generation={"eos_token_id": [200002, 199999, 200012]},
    ),
    "gpt-oss-120b": KnownModel(
        config=_gpt_oss(36, 128), parameters=116_829_156_672, kv_heads=8, head_dim=64, context=131072,
        eos=frozenset({200002}), rope=(150_000.0, "yarn"), windows={128: 18},
        biases=frozenset({"qkv", "output", "mlp"}),
    ),
    "SmolLM3-3B": KnownModel(
        config=_like("smollm3", "SmolLM3ForCausalLM", _llama(2048, 11008, 36, 16, 4, 128256),
                     rms_norm_eps=1e-6, bos_token_id=128000, eos_token_id=128012, pad_token_id=128004,
                     max_position_embeddings=65536, max_window_layers=28, no_rope_layer_interval=4,
                     no_rope_layers=[1, 1, 1, 0] * 9, rope_theta=5000000.0, rope_scaling=None, sliding_window=None,
                     use_sliding_window=False, attention_bias=False, mlp_bias=False, tie_word_embeddings=True,
                     layer_types=["full_attention"] * 36),
        parameters=3_075_098_624, kv_heads=4, head_dim=128, context=65536, eos=frozenset({128012}), native=False,
    ),
    "granite-3.1-2b": KnownModel(
        config=_like("granite", "GraniteForCausalLM", _llama(2048, 8192, 40, 32, 8, 49155),
                     attention_bias=False, attention_dropout=0.1, attention_multiplier=0.015625, bos_token_id=0,
                     embedding_multiplier=12.0, eos_token_id=0, logits_scaling=8.0, max_position_embeddings=131072,
                     mlp_bias=False, pad_token_id=0, residual_multiplier=0.22, rope_scaling=None, rope_theta=5000000.0,
                     tie_word_embeddings=True),
        parameters=2_533_531_648, kv_heads=8, head_dim=64, context=131072, eos=frozenset({0}), native=False,
    ),
    "OLMo-2-1124-7B": KnownModel(
        config=_like("olmo2", "Olmo2ForCausalLM", _llama(4096, 11008, 32, 32, 32, 100352),
                     attention_bias=False, attention_dropout=0.0, eos_token_id=100257, max_position_embeddings=4096,
                     pad_token_id=100277, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=500000),
        parameters=7_298_617_344, kv_heads=32, head_dim=128, context=4096, eos=frozenset({100257}), native=False,
    ),
    "starcoder2-3b": KnownModel(
        config={
            "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "residual_dropout": 0.1,
            "embedding_dropout": 0.1, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288,
            "max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2",
            "norm_epsilon": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
            "rope_theta": 999999.4420358813, "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
        },
        parameters=3_030_371_328, kv_heads=2, head_dim=128, context=16384, eos=frozenset({0}), native=False,
    ),
    "gpt2": KnownModel(
        config={
            "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
            "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
            "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
        },
        parameters=124_439_808, kv_heads=12, head_dim=64, context=1024, eos=frozenset({50256}), native=False,
    ),
    "Mixtral-8x7B": KnownModel(
        config=_like("mixtral", "MixtralForCausalLM", _llama(4096, 14336, 32, 32, 8, 32000), bos_token_id=1,
                     eos_token_id=2, max_position_embeddings=32768, num_experts_per_tok=2, num_local_experts=8,
                     output_router_logits=False, rope_theta=1000000.0, router_aux_loss_coef=0.02, sliding_window=None),
        parameters=46_702_792_704, kv_heads=8, head_dim=128, context=32768, eos=frozenset({2}), native=False,
    ),
}  # fmt: skip
