"""Quantised folders of decoders without layers of our own, which run through transformers on the expanded weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig, Olmo2Config

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.source import open_source
from limelight.models.transformers_model.source import TransformersSource
from tests.models.families.agreement import assert_agrees
from tests.models.quantization.quantized_models import awq_parts, quantize
from tests.models.tiny_models import Rig, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "olmo2": (Olmo2Config, {"pad_token_id": None}),
    "mixtral, experts one by one": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def save_both(config: Any, options: dict[str, Any], quantized: Path, expanded: Path) -> None:
    """A folder of AWQ, and the plain one that it stands for."""
    tiny_model(config, eos_token_id=1, bos_token_id=None, **options).save_pretrained(expanded)
    stored: dict[str, torch.Tensor] = {}
    plain = load_file(expanded / "model.safetensors")
    for name, tensor in plain.items():
        module = name.rpartition(".")[0]
        if ".layers." not in name or tensor.dim() != 2 or module.endswith("gate"):
            stored[name] = tensor
            continue
        levels = quantize(tensor, 4, 16)
        plain[name] = levels.weight
        stored |= {f"{module}.{key}": value for key, value in awq_parts(levels).items()}
    quantized.mkdir()
    save_file(plain, expanded / "model.safetensors")
    save_file(stored, quantized / "model.safetensors")
    described = json.loads((expanded / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps(described | {"quantization_config": AWQ}))


@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_transformers_on_the_expanded_weights(name: str, tmp_path: Path) -> None:
    save_both(*MODELS[name], tmp_path / "quantized", tmp_path / "expanded")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "expanded", attn_implementation="eager")
    source = open_source(tmp_path / "quantized", "auto")
    assert isinstance(source, TransformersSource)
    assert_agrees(plain, source, Rig)


def test_what_is_missing_or_of_another_method_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    save_both(*MODELS["olmo2"], folder, tmp_path / "expanded")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.scales is missing"):
        open_source(folder, "auto")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(UnsupportedModel, match="quantised with 'hqq'; Limelight reads gptq"):
        open_source(folder, "auto")
