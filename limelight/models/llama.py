"""The Llama family: Llama 2 and 3, SmolLM, TinyLlama, Mistral.

One decoder: grouped heads, rotary positions, RMSNorm before each half of a layer, a gated MLP (Touvron et al. 2023,
arXiv 2302.13971).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.kernels.interface import AttentionSettings, Kernels, LinearSegment
from limelight.models.forward_batch import ForwardBatch
from limelight.models.layers import Attention, GatedMLP, ReadTensor, StepState, projection
from limelight.models.rope import rope_tables
from limelight.models.spec import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head"


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter that the checkpoint must have."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    projections = {
        "self_attn.q_proj": (queries, hidden, spec.attention_bias),
        "self_attn.k_proj": (keys, hidden, spec.attention_bias),
        "self_attn.v_proj": (keys, hidden, spec.attention_bias),
        "self_attn.o_proj": (hidden, queries, spec.attention_bias),
        "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not spec.tie_word_embeddings:
        shapes[f"{HEAD}.weight"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for name, (outputs, inputs, has_bias) in projections.items():
            shapes[f"{prefix}.{name}.weight"] = (outputs, inputs)
            if has_bias:
                shapes[f"{prefix}.{name}.bias"] = (outputs,)
    return shapes


def weights_bytes(spec: ModelSpec, kernels: Kernels, dtype: torch.dtype) -> int:
    """Bytes of all parameters in memory: a tied head counts twice where `kernels` pack it beside the plain table."""
    shapes = parameter_shapes(spec)
    num_values = sum(math.prod(shape) for shape in shapes.values())
    if spec.tie_word_embeddings and kernels.packs_weights(dtype):
        num_values += math.prod(shapes[EMBEDDING])
    return num_values * dtype.itemsize


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One decoder layer."""

    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: GatedMLP


class Llama:
    """Weights and forward pass. The KV pool is passed in; nothing of a sequence is kept."""

    def __init__(
        self,
        spec: ModelSpec,
        read: ReadTensor,
        kernels: Kernels,
        num_positions: int,
        on_progress: Callable[[float], None],
    ) -> None:
        """Read and pack every parameter of `parameter_shapes(spec)`.

        Args:
            num_positions: the longest context that is served.
            on_progress: called with the fraction of layers that are ready.
        """
        self._kernels = kernels
        self._vocab_size = spec.vocab_size
        self._epsilon = spec.rms_norm_epsilon
        cos, sin = rope_tables(spec.rope, num_positions, spec.max_position_embeddings)
        self._cos, self._sin = cos.to(kernels.device), sin.to(kernels.device)
        settings = AttentionSettings(scale=spec.head_dim**-0.5, sliding_window=spec.sliding_window)
        self._layers: list[LlamaLayer] = []
        for index in range(spec.num_layers):
            prefix = f"model.layers.{index}"
            self._layers.append(
                LlamaLayer(
                    attention_norm=read(f"{prefix}.input_layernorm.weight"),
                    attention=Attention(
                        index, f"{prefix}.self_attn", read, kernels, settings, biases=spec.attention_bias
                    ),
                    mlp_norm=read(f"{prefix}.post_attention_layernorm.weight"),
                    mlp=GatedMLP(f"{prefix}.mlp", read, kernels, biases=spec.mlp_bias),
                )
            )
            on_progress((index + 1) / (spec.num_layers + 1))
        self._norm = read(FINAL_NORM)
        self._embedding = read(EMBEDDING)
        if spec.tie_word_embeddings:
            # Kernels that pack weights hold the table twice then: one is looked up in, the other multiplied with.
            self._head = kernels.pack_linear([LinearSegment(weight=self._embedding)])
        else:
            self._head = projection(kernels, read, [HEAD], biases=False)
        on_progress(1.0)

    def forward(self, batch: ForwardBatch, kv: Any) -> Tensor:
        """Write keys and values of all rows; logits [sampled, vocab] float32 of the rows that draw a token."""
        kernels, epsilon = self._kernels, self._epsilon
        state = StepState(
            kv=kv,
            plan=kernels.plan(batch.attention, kv),
            rotation=kernels.rotation(self._cos, self._sin, batch.attention),
        )
        residual: Tensor | None = None
        hidden = kernels.embed(batch.token_ids, self._embedding)
        for layer in self._layers:
            normed, residual = kernels.add_norm(hidden, residual, layer.attention_norm, epsilon)
            hidden = layer.attention(normed, state)
            normed, residual = kernels.add_norm(hidden, residual, layer.mlp_norm, epsilon)
            hidden = layer.mlp(normed)
        if batch.sample_rows is not None:
            if batch.sample_rows.numel() == 0:
                return hidden.new_empty(0, self._vocab_size, dtype=torch.float32)
            hidden = hidden.index_select(0, batch.sample_rows)
            residual = None if residual is None else residual.index_select(0, batch.sample_rows)
        normed, _ = kernels.add_norm(hidden, residual, self._norm, epsilon)
        return kernels.linear(normed, self._head).to(torch.float32)
