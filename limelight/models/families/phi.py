"""The Phi family from Phi 3 on (Abdin et al. 2024, arXiv 2404.14219): Phi 3, 3.5 and 4, text only.

Llama's layers with one stored matrix for queries, keys and values and one for gate and up, which may rotate only the
leading dimensions of a head, and stretch to long contexts by longrope.
"""

import msgspec

from limelight.models.families.family import ConfigDefaults, Family, read_activation, read_sliding_window
from limelight.models.fields import Fields
from limelight.models.layers import Attention, GatedMLP, LayerBuilder, PreNormLayer, Shapes, layered
from limelight.models.spec import ModelSpec

QKV = "qkv_proj"
GATE_UP = "gate_up_proj"


def parameter_shapes(spec: ModelSpec) -> Shapes:
    """Parameters of all layers."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        f"self_attn.{QKV}.weight": (queries + 2 * keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        f"mlp.{GATE_UP}.weight": (2 * inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    return layered(spec, lambda layer: shapes)


def build_layer(builder: LayerBuilder) -> PreNormLayer:
    """One decoder layer."""
    return PreNormLayer(builder, Attention(builder, fused=QKV), GatedMLP(builder, fused=GATE_UP))


def _refine(spec: ModelSpec, config: Fields) -> ModelSpec:
    return msgspec.structs.replace(
        spec, sliding_window=read_sliding_window(config, None), activation=read_activation(config)
    )


PHI3 = Family(
    title="Phi 3, 3.5 and 4",
    architectures=("phi3",),
    defaults=ConfigDefaults(
        max_position_embeddings=4096, partial_rotary=True, rms_norm_epsilon=1e-5, eos_token_id=32_000
    ),
    refine=_refine,
    parameter_shapes=parameter_shapes,
    build_layer=build_layer,
)
