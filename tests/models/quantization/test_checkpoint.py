"""Quantised folders as a whole: names, ties, biases, what is left over, and models loaded from them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Phi3Config, Qwen2Config, Qwen3MoeConfig

from limelight.config import EngineConfig
from limelight.errors import CheckpointError, UnsupportedModel
from limelight.kernels.reference import ReferenceKernels
from limelight.models.checkpoint import check_parameters, open_checkpoint
from limelight.models.decoder import parameter_shapes, weights_bytes
from limelight.models.loading import load_model
from tests.models.families.agreement import assert_same_logits_in_chunks
from tests.models.quantization.quantized_models import (
    Packed,
    awq_parts,
    gptq_parts,
    of_layers,
    quantize,
    save_quantized,
    save_quantized_experts,
)
from tests.models.quantization.same_logits import assert_same_as_transformers
from tests.models.sequences import Batch
from tests.models.tiny_models import save_byte_tokenizer, tiny_llama, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}, "format": None}
    },
}


def awq(weight: torch.Tensor) -> Packed:
    quantized = quantize(weight, 4, 16)
    return awq_parts(quantized), quantized.weight


def gptq(weight: torch.Tensor) -> Packed:
    quantized = quantize(weight, 4, 16)
    return gptq_parts(quantized, 4), quantized.weight


def fp8(weight: torch.Tensor) -> Packed:
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale.reshape(1)}, stored.float() * scale


def int8(weight: torch.Tensor) -> Packed:
    scales = weight.abs().amax(1, keepdim=True) / 127
    stored = (weight / scales).round().to(torch.int8)
    return {"weight": stored, "weight_scale": scales}, stored.float() * scales


FORMATS: dict[str, Any] = {"awq": (AWQ, awq), "gptq": (GPTQ, gptq), "fp8": (FP8, fp8), "int8": (INT8, int8)}


def edit(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Rewrite the safetensors file; None removes a tensor."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()} | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


@pytest.mark.parametrize("name", FORMATS)
def test_biases_stay_as_they_are(name: str, tmp_path: Path) -> None:
    settings, pack = FORMATS[name]
    model = tiny_model(Qwen2Config)
    save_quantized(model, tmp_path, settings, of_layers(pack))
    checkpoint = assert_same_as_transformers(model, tmp_path)
    assert "model.layers.0.self_attn.q_proj.bias" in checkpoint.names()


def test_matrices_that_a_family_stores_as_one_are_read(tmp_path: Path) -> None:
    model = tiny_model(Phi3Config, pad_token_id=0, eos_token_id=2)
    save_quantized(model, tmp_path, AWQ, of_layers(awq))
    checkpoint = assert_same_as_transformers(model, tmp_path)
    assert "model.layers.0.self_attn.qkv_proj.weight" in checkpoint.names()


def test_some_modules_may_be_plain_whatever_the_settings_say(tmp_path: Path) -> None:
    """Parts of a fused product as well: the list of exceptions in the settings isn't needed."""
    model = tiny_llama()
    plain = ("q_proj", "up_proj")
    save_quantized(
        model, tmp_path, AWQ, lambda module, weight: None if module.endswith(plain) else of_layers(awq)(module, weight)
    )
    assert_same_as_transformers(model, tmp_path)


@pytest.mark.parametrize("name", ["gptq", "fp8"])
def test_a_quantised_head_beside_the_table_is_the_head(name: str, tmp_path: Path) -> None:
    settings, pack = FORMATS[name]
    model = tiny_llama(vocab_size=96)
    save_quantized(model, tmp_path, settings, lambda module, weight: None if "embed" in module else pack(weight))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    checkpoint = open_checkpoint(tmp_path)
    assert not checkpoint.spec.tie_word_embeddings
    assert torch.equal(checkpoint.tensor("lm_head.weight"), model.lm_head.weight)
    check_parameters(checkpoint, parameter_shapes(checkpoint.spec))


def test_biases_of_zeros_that_a_tool_added_are_let_be(tmp_path: Path) -> None:
    model = tiny_llama()
    save_quantized(model, tmp_path, GPTQ, of_layers(gptq))
    edit(tmp_path, {"model.layers.0.mlp.up_proj.bias": torch.zeros(48, dtype=torch.float16)})
    assert_same_as_transformers(model, tmp_path)
    edit(tmp_path, {"model.layers.0.mlp.up_proj.bias": torch.ones(48, dtype=torch.float16)})
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"1 unused: model\.layers\.0\.mlp\.up_proj\.bias$"):
        check_parameters(checkpoint, parameter_shapes(checkpoint.spec))


def test_what_belongs_to_no_module_is_named_as_it_is_stored(tmp_path: Path) -> None:
    save_quantized(tiny_llama(), tmp_path, AWQ, of_layers(awq))
    prefix = "model.layers.1.mlp.down_proj"
    edit(
        tmp_path,
        {f"{prefix}.{part}": None for part in ("qweight", "qzeros", "scales")}
        | {f"{prefix}.lora_a": torch.ones(1), "model.layers.9.mlp.up_proj.weight": torch.ones(2, 2)},
    )
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        check_parameters(checkpoint, parameter_shapes(checkpoint.spec))
    assert f"1 missing: {prefix}.weight" in caught.value.message
    assert f"2 unused: {prefix}.lora_a, model.layers.9.mlp.up_proj.weight" in caught.value.message


def test_a_weight_that_is_stored_twice_is_refused(tmp_path: Path) -> None:
    save_quantized(tiny_llama(), tmp_path, AWQ, of_layers(awq))
    name = "model.layers.0.mlp.up_proj"
    edit(tmp_path, {f"{name}.weight": torch.zeros(48, 32)})
    with pytest.raises(CheckpointError, match=rf"{name}\.weight is stored beside {name}\.qweight: remove one of them"):
        open_checkpoint(tmp_path)


def test_a_matrix_of_another_size_is_named(tmp_path: Path) -> None:
    save_quantized(tiny_llama(), tmp_path, AWQ, of_layers(awq))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight is \[48, 32\], expected \[64, 32\]"):
        check_parameters(checkpoint, parameter_shapes(checkpoint.spec))


def test_shapes_are_told_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from limelight.models.safetensors.checkpoint import SafetensorsCheckpoint

    save_quantized(tiny_llama(), tmp_path, AWQ, of_layers(awq))
    read: list[str] = []
    packed = SafetensorsCheckpoint.packed

    def watched(self: SafetensorsCheckpoint, name: str) -> torch.Tensor:
        read.append(name)
        return packed(self, name)

    monkeypatch.setattr(SafetensorsCheckpoint, "packed", watched)
    checkpoint = open_checkpoint(tmp_path)
    check_parameters(checkpoint, parameter_shapes(checkpoint.spec))
    assert read == []
    checkpoint.tensor("model.layers.0.mlp.up_proj.weight")
    assert read == [f"model.layers.0.mlp.up_proj.{part}" for part in ("qweight", "scales", "qzeros")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_becomes_a_model_that_generates_in_the_memory_that_was_planned(name: str, tmp_path: Path) -> None:
    settings, pack = FORMATS[name]
    model = tiny_model(LlamaConfig, vocab_size=258, eos_token_id=256)
    save_quantized(model, tmp_path, settings, of_layers(pack))
    save_byte_tokenizer(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu", kv_cache_bytes=2**20, page_size=8, quantize="none")
    loaded = load_model(config, lambda what, fraction: None)
    batch = Batch(loaded.executor, 8, range(loaded.capacity.num_pages))
    sequence = batch.sit(0, list(b"quantised"))
    batch.generate(sequence, 10)
    with torch.inference_mode():
        expected = model(torch.tensor([sequence.tokens[:-1]])).logits[0, 8:]
    assert sequence.output == expected.argmax(-1).tolist()

    checkpoint = open_checkpoint(tmp_path)
    planned = weights_bytes(checkpoint.spec, ReferenceKernels("cpu"), "float32")
    assert planned == sum(4 * checkpoint.tensor(name).numel() for name in parameter_shapes(checkpoint.spec))
    assert checkpoint.stored_bytes < planned * 0.9


@pytest.mark.parametrize(("stated", "expected"), [("float16", "float16"), ("bfloat16", "bfloat16"), (None, "float32")])
def test_a_quantised_model_computes_in_what_its_configuration_or_else_its_table_says(
    stated: str | None, expected: str, tmp_path: Path
) -> None:
    save_quantized(tiny_llama(), tmp_path, AWQ, of_layers(awq))
    config = json.loads((tmp_path / "config.json").read_text()) | {"dtype": stated}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).spec.dtype == expected


@pytest.mark.parametrize(
    "method",
    ["bitsandbytes", "hqq", "aqlm", "eetq", "quip", "torchao", "vptq", "fbgemm_fp8", "quanto", "auto-round", "mxfp4"],
)
def test_other_methods_are_refused_by_name_with_advice(method: str, tmp_path: Path) -> None:
    save_quantized(tiny_llama(), tmp_path, {"quant_method": method, "bits": 4}, lambda module, weight: None)
    with pytest.raises(UnsupportedModel, match=rf"quantised with '{method}'; Limelight reads gptq, awq, .* GGUF file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_settings_without_a_method_are_refused(key: str, tmp_path: Path) -> None:
    save_quantized(tiny_llama(), tmp_path, None, lambda module, weight: None)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: {"bits": 4}}))
    with pytest.raises(UnsupportedModel, match="quantised, but quant_method is missing"):
        open_checkpoint(tmp_path)


def test_the_older_key_of_compressed_tensors_is_read(tmp_path: Path) -> None:
    model = tiny_llama()
    save_quantized(model, tmp_path, None, of_layers(int8))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"compression_config": INT8}))
    assert_same_as_transformers(model, tmp_path)


def test_a_plain_tensor_of_integers_is_still_refused(tmp_path: Path) -> None:
    save_quantized(tiny_llama(), tmp_path, AWQ, of_layers(awq))
    edit(tmp_path, {"model.norm.weight": torch.ones(32, dtype=torch.int8)})
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is stored as I8"):
        open_checkpoint(tmp_path).tensor("model.norm.weight")


@pytest.mark.parametrize("name", FORMATS)
def test_experts_that_are_quantised_one_by_one_are_stacked(name: str, tmp_path: Path) -> None:
    settings, pack = FORMATS[name]
    model = tiny_model(
        Qwen3MoeConfig,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )
    save_quantized_experts(model, tmp_path, settings, pack)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.shape("model.layers.0.mlp.experts.down_proj.weight") == (4, 32, 16)
    check_parameters(checkpoint, parameter_shapes(checkpoint.spec))
    assert_same_logits_in_chunks(model, checkpoint)
