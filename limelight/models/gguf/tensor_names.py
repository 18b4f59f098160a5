"""Names of tensors: those of GGUF, which ggml gives, and those that transformers gives and Limelight goes by."""

import re
from collections.abc import Mapping

OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Within a layer, in all architectures but for what follows."""

EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Gemma 2 and 3 have a norm before and one after each half of a layer."""

PHI = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
"""Phi 3 stores queries, keys and values as one matrix, and gate and up as one that is called up."""

GPT_OSS = EXPERTS | {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm"}
SINKS = "attn_sinks"
"""Has no suffix in transformers, and one (.weight) in GGUF."""

LAYER_TENSOR = re.compile(r"blk\.([0-9]+)\.(\w+?)(\.weight|\.bias)?", re.ASCII)


def hugging_face_name(name: str, own: Mapping[str, str]) -> str:
    """The name that transformers gives to a tensor; its GGUF name if transformers has none for it.

    Args:
        own: names within a layer that are the architecture's own, over `LAYER`.
    """
    match = LAYER_TENSOR.fullmatch(name)
    if match is None:
        return OUTER.get(name, name)
    layer, stem, suffix = match[1], match[2], match[3] or ""
    if stem == SINKS and suffix != ".bias":
        return f"model.layers.{layer}.self_attn.sinks"
    known = own.get(stem) or LAYER.get(stem)
    return f"model.layers.{layer}.{known}{suffix}" if known and suffix else name
