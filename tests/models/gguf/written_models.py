"""transformers models as GGUF files, with the conversions that llama.cpp's converter applies to each architecture.

Names of tensors and keys are the gguf package's own.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE, "qwen3": gguf.MODEL_ARCH.QWEN3, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma": gguf.MODEL_ARCH.GEMMA, "gemma2": gguf.MODEL_ARCH.GEMMA2, "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
}  # fmt: skip
Change = Callable[[gguf.GGUFWriter], None]


def write_model(
    model: Any,
    path: Path,
    *,
    kind: str = "F32",
    kinds: dict[str, str] | None = None,
    change: Change = lambda writer: None,
    split_max_tensors: int = 0,
) -> Path:
    """`model` as a GGUF file.

    Args:
        kind: format of all matrices whose rows are whole blocks; the rest is F32.
        kinds: other formats for tensors whose name contains a key.
        change: adds metadata of its own, or overwrites what is there.
        split_max_tensors: tensors of each part, or 0 for one file.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture], split_max_tensors=split_max_tensors)
    add_metadata(writer, config)
    change(writer)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in converted(model):
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        number_format = next((own for part, own in (kinds or {}).items() if part in stored_name), kind)
        quantised = gguf.GGMLQuantizationType[number_format]
        if tensor.ndim == 1 or tensor.shape[-1] % gguf.GGML_QUANT_SIZES[quantised][0]:
            quantised = gguf.GGMLQuantizationType.F32
        writer.add_tensor(stored_name, gguf.quants.quantize(tensor, quantised), raw_dtype=quantised)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write all that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    """What the converter writes of a configuration."""
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.model_type in ("llama", "phi3"):
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] in ("linear", "yarn"):
        kinds = {"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}
        writer.add_rope_scaling_type(kinds[rope["rope_type"]])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    num_experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_token_list([f"t{index}" for index in range(config.vocab_size)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def converted(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Names of transformers, per expert matrix, with values as a GGUF file has them."""
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        value = tensor.to(torch.float32).numpy()
        middle = name.split(".")[-2]
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if ".experts." in name:
            yield from experts(name, value, interleaved=config.model_type == "gpt_oss")
        elif config.model_type in ("llama", "mistral") and middle in heads:
            yield name, interleaved_rows(value, heads[middle])
        elif config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            yield name, value + 1
        elif name.endswith("shared_expert_gate.weight"):
            yield name, value[0]
        elif name.endswith("sinks"):
            yield f"{name}.weight", value
        else:
            yield name, value


def interleaved_rows(value: np.ndarray, num_heads: int) -> np.ndarray:
    """The order that the converter gives to query and key rows of llama models."""
    return value.reshape(num_heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def experts(name: str, value: np.ndarray, *, interleaved: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Gate and up apart, every expert's matrix [out, in]; gpt-oss stores [in, out], gate and up by turns."""
    prefix, _, kind = name.rpartition(".")
    suffix = "bias" if kind.endswith("_bias") else "weight"
    if interleaved and suffix == "weight":
        value = value.swapaxes(1, 2)
    if kind.startswith("gate_up"):
        middle = value.shape[1] // 2
        gate, up = (value[:, ::2], value[:, 1::2]) if interleaved else (value[:, :middle], value[:, middle:])
        yield f"{prefix}.gate_proj.{suffix}", np.ascontiguousarray(gate)
        yield f"{prefix}.up_proj.{suffix}", np.ascontiguousarray(up)
    else:
        yield f"{prefix}.down_proj.{suffix}", np.ascontiguousarray(value)
