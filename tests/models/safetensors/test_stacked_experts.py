"""Experts in one form, whatever the form of the file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, Qwen3MoeConfig

from limelight.errors import CheckpointError
from limelight.models.checkpoint import Checkpoint, check_parameters, open_checkpoint
from limelight.models.decoder import parameter_shapes
from tests.models.families.agreement import assert_same_logits_in_chunks
from tests.models.tiny_models import saved, tiny_llama, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PREFIX = "model.layers.1.mlp.experts"


def qwen() -> Any:
    return tiny_model(Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20)


def rewritten(folder: Path, changes: dict[str, torch.Tensor | None]) -> Checkpoint:
    """The folder with some tensors replaced, or left out where they are None."""
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, file)
    return open_checkpoint(folder)


def fused(model: Any, folder: Path) -> Checkpoint:
    """The same weights in the form of transformers' own parameters."""
    saved(model, folder)
    parameters = {name: value for name, value in model.state_dict().items() if ".experts." in name}
    stored = load_file(folder / "model.safetensors")
    return rewritten(folder, {name: None for name in stored if ".experts." in name} | parameters)


def test_one_tensor_per_expert_and_fused_tensors_are_presented_alike(tmp_path: Path) -> None:
    model = qwen()
    single, joined = saved(model, tmp_path / "single"), fused(model, tmp_path / "fused")
    assert f"{PREFIX}.3.up_proj.weight" in load_file(tmp_path / "single" / "model.safetensors")
    assert f"{PREFIX}.gate_up_proj" in load_file(tmp_path / "fused" / "model.safetensors")
    assert set(single.names()) == set(joined.names()) == set(parameter_shapes(single.spec))
    for name in single.names():
        assert single.shape(name) == joined.shape(name) == tuple(single.tensor(name).shape), name
        assert torch.equal(single.tensor(name), joined.tensor(name)), name
    experts = model.model.layers[1].mlp.experts
    assert torch.equal(single.tensor(f"{PREFIX}.up_proj.weight"), experts.gate_up_proj[:, 20:])
    assert torch.equal(single.tensor(f"{PREFIX}.down_proj.weight"), experts.down_proj)
    assert_same_logits_in_chunks(model, joined)
    assert single.stored_bytes == joined.stored_bytes
    assert single.files == (tmp_path / "single" / "model.safetensors",)


def test_quantised_experts_are_stacked_expanded(tmp_path: Path) -> None:
    """The form of Qwen's own FP8 repositories: eight bits a value and a scale for each block of 128 x 128."""
    model = qwen()
    saved(model, tmp_path)
    changes: dict[str, torch.Tensor | None] = {}
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            for expert in range(4):
                parts = {
                    "gate": layer.mlp.experts.gate_up_proj[expert, :20],
                    "up": layer.mlp.experts.gate_up_proj[expert, 20:],
                    "down": layer.mlp.experts.down_proj[expert],
                }
                for number, (part, weight) in enumerate(parts.items()):
                    name = f"model.layers.{index}.mlp.experts.{expert}.{part}_proj.weight"
                    scale = 0.25 + 0.125 * (expert + number)
                    changes[name] = (weight / scale).to(torch.float8_e4m3fn)
                    changes[f"{name}_scale_inv"] = torch.full((1, 1), scale)
                    weight.copy_(changes[name].float() * scale)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = rewritten(tmp_path, changes)
    assert set(checkpoint.names()) == set(parameter_shapes(checkpoint.spec))
    assert_same_logits_in_chunks(model, checkpoint)


def test_gpt_oss_stores_matrices_transposed_with_gate_and_up_alternating(tmp_path: Path) -> None:
    model = tiny_model(GptOssConfig, num_local_experts=4, num_experts_per_tok=2, head_dim=16)
    checkpoint = saved(model, tmp_path)
    experts = model.model.layers[1].mlp.experts
    check_parameters(checkpoint, parameter_shapes(checkpoint.spec))
    assert torch.equal(checkpoint.tensor(f"{PREFIX}.gate_proj.weight")[2], experts.gate_up_proj[2, :, ::2].T)
    assert torch.equal(checkpoint.tensor(f"{PREFIX}.up_proj.weight")[2], experts.gate_up_proj[2, :, 1::2].T)
    assert torch.equal(checkpoint.tensor(f"{PREFIX}.down_proj.weight")[2], experts.down_proj[2].T)
    assert torch.equal(checkpoint.tensor(f"{PREFIX}.up_proj.bias"), experts.gate_up_proj_bias[:, 1::2])
    assert torch.equal(checkpoint.tensor(f"{PREFIX}.down_proj.bias"), experts.down_proj_bias)


def test_a_model_without_experts_is_not_looked_at_twice(tmp_path: Path) -> None:
    checkpoint = saved(tiny_llama(), tmp_path)
    assert type(checkpoint).__name__ == "SafetensorsCheckpoint"


def test_missing_experts_are_named(tmp_path: Path) -> None:
    saved(qwen(), tmp_path)
    with pytest.raises(CheckpointError, match=r"1\.mlp\.experts\.up_proj\.weight lacks 2 of the 4 experts .*: 0, 2;"):
        rewritten(tmp_path, {f"{PREFIX}.0.up_proj.weight": None, f"{PREFIX}.2.up_proj.weight": None})


def test_experts_of_different_sizes_are_named(tmp_path: Path) -> None:
    saved(qwen(), tmp_path)
    with pytest.raises(CheckpointError, match=r"experts\.2\.down_proj\.weight is \[32, 19\], but .* is \[32, 20\]"):
        rewritten(tmp_path, {f"{PREFIX}.2.down_proj.weight": torch.zeros(32, 19)})


def test_experts_of_another_size_than_the_model_says_are_named(tmp_path: Path) -> None:
    saved(qwen(), tmp_path)
    changes = {f"{PREFIX}.{expert}.down_proj.weight": torch.zeros(32, 21) for expert in range(4)}
    checkpoint = rewritten(tmp_path, dict(changes))
    with pytest.raises(CheckpointError, match=r"down_proj\.weight is \[4, 32, 21\], expected \[4, 32, 20\]"):
        check_parameters(checkpoint, parameter_shapes(checkpoint.spec))


@pytest.mark.parametrize("number", ["4", "999999", "99999999999", "01"])
def test_experts_beyond_the_last_are_named(number: str, tmp_path: Path) -> None:
    saved(qwen(), tmp_path)
    checkpoint = rewritten(tmp_path, {f"{PREFIX}.{number}.up_proj.weight": torch.zeros(20, 32)})
    with pytest.raises(CheckpointError, match=rf"1 unused: model\.layers\.1\.mlp\.experts\.{number}\.up_proj\.weight"):
        check_parameters(checkpoint, parameter_shapes(checkpoint.spec))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("gate_up_proj", (4, 40), r"gate_up_proj is \[4, 40\]; it must have 3 dimensions"),
        ("gate_up_proj", (4, 41, 32), "gate and up must have equally many rows"),
        ("gate_up_proj", (3, 40, 32), r"gate_proj.weight is \[3, 20, 32\], expected \[4, 20, 32\]"),
        ("down_proj", (4, 20, 32), r"down_proj.weight is \[4, 20, 32\], expected \[4, 32, 20\]"),
    ],
)
def test_fused_experts_of_impossible_sizes_are_named(
    name: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    fused(qwen(), tmp_path)
    with pytest.raises(CheckpointError, match=message):
        check_parameters(
            changed := rewritten(tmp_path, {f"{PREFIX}.{name}": torch.zeros(shape)}), parameter_shapes(changed.spec)
        )


def test_fused_experts_beside_single_ones_are_refused(tmp_path: Path) -> None:
    model = qwen()
    saved(model, tmp_path)
    with pytest.raises(CheckpointError, match=r"down_proj\.weight is stored twice"):
        rewritten(tmp_path, {f"{PREFIX}.down_proj": model.model.layers[1].mlp.experts.down_proj.data})
