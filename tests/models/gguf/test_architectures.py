"""Tiny random models written as GGUF files, against the transformers models that they were made from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
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
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.checkpoint import open_checkpoint
from limelight.models.families.registry import ARCHITECTURES
from limelight.models.gguf.architectures import GGUF_ARCHITECTURES
from limelight.models.spec import RopeScaling
from tests.models.families.agreement import assert_same_logits_in_chunks
from tests.models.gguf.written_models import write_model
from tests.models.tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000.0}
GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 9, "tie_word_embeddings": True}
PHI = {"pad_token_id": 0, "eos_token_id": 2, "hidden_size": 48}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.2],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 8.0, 16.0],
    "attention_factor": 1.2,
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 2000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
GPT_OSS = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "sliding_window": 9,
    "num_hidden_layers": 3,
    "rope_parameters": {**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
}
MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"head_dim": 12, "rope_theta": 5000.0}),
    "llama, biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral, sliding window": (MistralConfig, {"sliding_window": 9}),
    "qwen2": (Qwen2Config, {"rope_theta": 1e6}),
    "qwen2, yarn": (Qwen2Config, {"rope_scaling": YARN, "tie_word_embeddings": True}),
    "qwen2moe": (Qwen2MoeConfig, {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3": (Qwen3Config, {"head_dim": 12}),
    "qwen3moe": (Qwen3MoeConfig, {**EXPERTS, "head_dim": 12, "norm_topk_prob": True}),
    "gpt-oss": (GptOssConfig, GPT_OSS),
    "gemma": (GemmaConfig, {"head_dim": 12, "tie_word_embeddings": True}),
    "gemma2": (Gemma2Config, {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "gemma3": (Gemma3TextConfig, {**GEMMA, "num_hidden_layers": 7}),
    "gemma3, stretched": (Gemma3TextConfig, {**GEMMA, "num_hidden_layers": 6, "rope_parameters": GEMMA3_ROPES}),
    "gemma3, own head": (Gemma3TextConfig, {**GEMMA, "num_hidden_layers": 1, "tie_word_embeddings": False}),
    "phi3": (Phi3Config, {**PHI, "sliding_window": 9}),
    "phi3, partial rotary": (Phi3Config, {**PHI, "hidden_size": 64, "partial_rotary_factor": 0.5}),
    "phi3, longrope": (Phi3Config, {**PHI, "rope_scaling": LONGROPE, "original_max_position_embeddings": 32}),
    "phi3, within its context": (
        Phi3Config,
        {**PHI, "rope_scaling": LONGROPE, "original_max_position_embeddings": 128},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_model_that_was_written(name: str, tmp_path: Path) -> None:
    config_class, settings = MODELS[name]
    model = tiny_model(config_class, **settings)
    assert_same_logits_in_chunks(model, open_checkpoint(write_model(model, tmp_path / "model.gguf")))


def test_experts_in_mxfp4_are_multiplied_with_as_they_are_stored(tmp_path: Path) -> None:
    model = tiny_model(GptOssConfig, **{**GPT_OSS, "intermediate_size": 64})
    kind = gguf.GGMLQuantizationType.MXFP4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." in name and not name.endswith("_bias"):  # [experts, in, out], and blocks lie along in
                blocks = gguf.quants.quantize(parameter.swapaxes(1, 2).contiguous().numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(blocks, kind)).swapaxes(1, 2))
    checkpoint = open_checkpoint(write_model(model, tmp_path / "model.gguf", kinds={"_exps.weight": "MXFP4"}))
    stored = checkpoint.stored("model.layers.0.mlp.experts.down_proj.weight")
    assert (stored.format, stored.shape) == ("MXFP4", (5, 32, 64))
    assert_same_logits_in_chunks(model, checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda writer: writer.add_expert_count(0),
            r"qwen3moe\.expert_count is 0; it must be an integer from 1 to 4096",
        ),
        (lambda writer: writer.add_expert_count(2**31), r"expert_count is 2147483648"),
        (lambda writer: writer.add_expert_used_count(6), r"expert_used_count is 6; it must be an integer from 1 to 5"),
        (lambda writer: writer.add_expert_feed_forward_length(2**30), r"expert_feed_forward_length is 1073741824"),
    ],
)
def test_impossible_experts_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        spec_of("qwen3moe", tmp_path, change)


def test_every_architecture_is_written_and_compared() -> None:
    compared = {config_class.model_type for config_class, _ in MODELS.values()}
    runnable = {entry.family for entry in GGUF_ARCHITECTURES.values()} & set(ARCHITECTURES)
    assert compared == runnable | {"mistral"}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"])
def test_tensors_equal_those_that_transformers_reads_from_the_same_file(name: str, kind: str, tmp_path: Path) -> None:
    config_class, settings = MODELS[name]
    wide = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    model = tiny_model(config_class, **{**settings, **wide})
    checkpoint = open_checkpoint(write_model(model, tmp_path / "model.gguf", kind=kind))
    read = load_gguf_checkpoint(tmp_path / "model.gguf", return_tensors=True, model_to_load=model)["tensors"]
    expected = dict(canonical(read))
    assert set(checkpoint.names()) == set(expected)
    for tensor_name, tensor in expected.items():
        # transformers takes away again the 1 that the converter adds to the norms of Gemma.
        offset = 1.0 if name.startswith("gemma") and tensor_name.endswith("norm.weight") else 0.0
        torch.testing.assert_close(checkpoint.tensor(tensor_name), tensor + offset, rtol=0, atol=1e-6 * offset)


def canonical(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors as transformers keeps them, with gate and up of experts apart."""
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj.weight"), gate
            yield name.replace("gate_up_proj", "up_proj.weight"), up
        else:
            yield f"{name}.weight" if name.endswith("experts.down_proj") else name, tensor


def spec_of(name: str, folder: Path, change: Any = lambda writer: None, **settings: Any) -> Any:
    config_class, own = MODELS[name]
    model = tiny_model(config_class, **{**own, **settings})
    return open_checkpoint(write_model(model, folder / "model.gguf", change=change)).spec


def test_longrope_comes_with_its_tensors(tmp_path: Path) -> None:
    rope = spec_of("phi3, longrope", tmp_path).rope
    assert rope.scaling is RopeScaling.LONGROPE
    assert rope.short_factors == pytest.approx(LONGROPE["short_factor"])
    assert rope.long_factors == pytest.approx(LONGROPE["long_factor"])
    assert rope.attention_factor == pytest.approx(1.2)
    assert rope.original_max_position_embeddings == 32


def test_longrope_factors_come_in_pairs_and_with_their_context(tmp_path: Path) -> None:
    def half_of_it(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_factors_long.weight", np.ones(6, np.float32))

    with pytest.raises(CheckpointError, match=r"tensor rope_factors_short\.weight is None; long and short"):
        spec_of("phi3", tmp_path, half_of_it)

    def no_context(writer: gguf.GGUFWriter) -> None:
        half_of_it(writer)
        writer.add_tensor("rope_factors_short.weight", np.ones(6, np.float32))

    with pytest.raises(CheckpointError, match=r"phi3\.rope\.scaling\.original_context_length is missing"):
        spec_of("phi3", tmp_path, no_context)


def test_gemma_is_never_computed_in_float16(tmp_path: Path) -> None:
    model = tiny_model(Gemma3TextConfig, **{**GEMMA, "hidden_size": 64})
    assert open_checkpoint(write_model(model, tmp_path / "h.gguf", kind="F16")).spec.dtype == "bfloat16"


def test_gemma_norms_have_no_offset_in_a_file(tmp_path: Path) -> None:
    spec = spec_of("gemma3", tmp_path)
    assert (spec.norm_offset, spec.embedding_scale, spec.qk_norm) == (0.0, pytest.approx(32**0.5), True)
    assert spec.local_rope.theta == 10_000.0
    assert spec.sliding_layers == frozenset({0, 1, 2, 3, 4, 6})


@pytest.mark.parametrize(("pattern", "sliding"), [(2, {0, 2}), ([True, True, False, False], {0, 1}), (1, set())])
def test_a_stated_pattern_of_windows_wins(tmp_path: Path, pattern: Any, sliding: set[int]) -> None:
    def state(writer: gguf.GGUFWriter) -> None:
        if isinstance(pattern, list):
            writer.add_array("gemma3.attention.sliding_window_pattern", pattern)
        else:
            writer.add_uint32("gemma3.attention.sliding_window_pattern", pattern)

    assert spec_of("gemma3", tmp_path, state, num_hidden_layers=4).sliding_layers == sliding


@pytest.mark.parametrize("pattern", [[True], [1, 0, 1, 0], [True] * 9000])
def test_a_pattern_that_does_not_fit_the_layers_is_refused(tmp_path: Path, pattern: list[Any]) -> None:
    with pytest.raises(CheckpointError, match="one truth value for each of 4 layers"):
        spec_of(
            "gemma3",
            tmp_path,
            lambda writer: writer.add_array("gemma3.attention.sliding_window_pattern", pattern),
            num_hidden_layers=4,
        )


def test_without_a_window_every_layer_of_gemma_3_sees_everything(tmp_path: Path) -> None:
    spec = spec_of("gemma3", tmp_path, sliding_window=None)
    assert (spec.sliding_window, spec.sliding_layers) == (None, frozenset())


@pytest.mark.parametrize(
    ("name", "layers", "scale"),
    [("gemma2", 2, 12**-0.5), ("gemma2", 46, 8**-0.5), ("gemma3", 2, 12**-0.5), ("gemma3", 62, 8**-0.5)],
)
def test_the_27b_models_of_gemma_scale_by_the_hidden_size(tmp_path: Path, name: str, layers: int, scale: float) -> None:
    assert spec_of(name, tmp_path, num_hidden_layers=layers).scale == pytest.approx(scale)


def test_experts_in_an_architecture_without_them_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"llama\.expert_count is 8; .*Mixtral"):
        spec_of("llama", tmp_path, lambda writer: writer.add_expert_count(8))


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("attention.causal", False, gguf.GGUFValueType.BOOL),
        ("attention.clamp_kqv", 8.0, gguf.GGUFValueType.FLOAT32),
        ("attention.max_alibi_bias", 8.0, gguf.GGUFValueType.FLOAT32),
        ("attention.scale", 0.5, gguf.GGUFValueType.FLOAT32),
        ("embedding_scale", 12.0, gguf.GGUFValueType.FLOAT32),
        ("logit_scale", 0.25, gguf.GGUFValueType.FLOAT32),
        ("residual_scale", 0.5, gguf.GGUFValueType.FLOAT32),
    ],
)
def test_what_the_layers_do_not_apply_is_refused(tmp_path: Path, key: str, value: Any, kind: Any) -> None:
    with pytest.raises(UnsupportedModel, match=rf"llama\.{key} is {str(value).lower()}; Limelight"):
        spec_of("llama", tmp_path, lambda writer: writer.add_key_value(f"llama.{key}", value, kind))


def test_a_scale_that_changes_nothing_is_let_be(tmp_path: Path) -> None:
    spec_of("llama", tmp_path, lambda writer: writer.add_logit_scale(1.0))


def test_a_partial_rotation_is_refused_where_the_family_has_none(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"qwen2\.rope\.dimension_count is 4"):
        spec_of("qwen2", tmp_path, lambda writer: writer.add_rope_dimension_count(4))


def test_tokens_that_end_a_turn_end_a_generation(tmp_path: Path) -> None:
    def tokens(texts: dict[int, str]) -> Any:
        def add(writer: gguf.GGUFWriter) -> None:
            writer.add_token_list([texts.get(index, f"t{index}") for index in range(97)])
            # Token 9 is written like an end of turn, but is an ordinary one.
            writer.add_token_types([3 if index in texts and index != 9 else 1 for index in range(97)])

        return add

    ends = spec_of("qwen2", tmp_path, tokens({5: "<|im_end|>", 7: "<tool>", 9: "<end_of_turn>"})).eos_token_ids
    assert ends == {2, 5}
    ends = spec_of("qwen2", tmp_path, tokens({5: "<|return|>", 6: "<|call|>", 7: "<|end|>"})).eos_token_ids
    assert ends == {2, 5, 6}
