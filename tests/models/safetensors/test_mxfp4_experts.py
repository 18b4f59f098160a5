"""Packed experts of gpt-oss against the expansion that transformers does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from limelight.errors import CheckpointError
from limelight.kernels.interface import StoredTensor
from limelight.models.checkpoint import Checkpoint, check_parameters, open_checkpoint
from limelight.models.decoder import parameter_shapes
from limelight.models.gguf.blocks import to_float32
from limelight.models.parameters import Parameters
from limelight.models.precision import Precision
from limelight.models.safetensors.mxfp4_experts import expand, in_blocks
from tests.models.families.agreement import assert_agrees
from tests.models.sequences import Batch
from tests.models.tiny_models import Rig, c_kernels, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
EXPERTS = "model.layers.0.mlp.experts"


def random_bytes(*shape: int, low: int = 0, high: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_all_bytes_under_all_scales_mean_what_transformers_understands() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 255, 1, 1)
    scales = torch.arange(255, dtype=torch.uint8).view(1, 255, 1).repeat(1, 1, 16)
    ours = expand(blocks, scales)
    theirs = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, theirs)


def test_experts_keep_their_places() -> None:
    blocks, scales = random_bytes(3, 6, 4, 16), random_bytes(3, 6, 4, low=120, high=130, seed=1)
    assert torch.equal(expand(blocks, scales), convert_moe_packed_tensors(blocks, scales).transpose(1, 2))


def test_the_blocks_of_a_gguf_file_hold_the_same_values() -> None:
    blocks, scales = random_bytes(3, 6, 4, 16), random_bytes(3, 6, 4, low=100, high=150, seed=1)
    stored = in_blocks(blocks, scales)
    values = torch.from_numpy(to_float32(stored.rows, stored.format, stored.shape))
    assert torch.equal(values, expand(blocks, scales).float())


def packed_gpt_oss(folder: Path) -> Any:
    """A tiny gpt-oss whose experts are stored as the hub has them; returns it in transformers, expanded."""
    model = tiny_model(
        GptOssConfig,
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        intermediate_size=64,
        sliding_window=9,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    tensors: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        for name, (outputs, inputs) in {"gate_up_proj": (128, 32), "down_proj": (32, 64)}.items():
            blocks = random_bytes(4, outputs, inputs // 32, 16, seed=index)
            scales = random_bytes(4, outputs, inputs // 32, low=121, high=125, seed=9)
            getattr(layer.mlp.experts, name).data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            prefix = f"model.layers.{index}.mlp.experts.{name}"
            tensors |= {f"{prefix}_blocks": blocks, f"{prefix}_scales": scales}
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    stored = {
        name: value for name, value in load_file(file).items() if not name.endswith(("gate_up_proj", "down_proj"))
    }
    save_file(stored | tensors, file)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return model


def test_a_packed_model_agrees_with_transformers(tmp_path: Path) -> None:
    model = packed_gpt_oss(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.names()) == set(parameter_shapes(checkpoint.spec))
    assert torch.equal(
        checkpoint.tensor(f"{EXPERTS}.up_proj.weight")[1].float(),
        model.model.layers[0].mlp.experts.gate_up_proj[1, :, 1::2].T,
    )
    assert_agrees(model, checkpoint)


def test_kernels_that_take_the_blocks_multiply_with_them(tmp_path: Path) -> None:
    """Rows are int8 there, so logits agree in about two digits."""
    packed_gpt_oss(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    in_c = c_kernels()
    parameters = Parameters(checkpoint, in_c, Precision(values="float32", kv="float32", weights=None))
    gate = parameters.matrix(f"{EXPERTS}.gate_proj.weight")
    assert isinstance(gate, StoredTensor)
    assert gate.format == "MXFP4"
    logits = []
    for rig in (Rig(checkpoint), Rig(checkpoint, kernels=in_c)):
        batch = Batch(rig.executor, rig.capacity.page_size, range(16))
        batch.step((batch.sit(0, list(range(40))), 40))
        logits.append(rig.logits)
    exact, rounded = logits
    assert not torch.equal(exact, rounded)
    assert (exact - rounded).norm() < 0.02 * exact.norm()


def changed(folder: Path, changes: dict[str, torch.Tensor | None]) -> Checkpoint:
    packed_gpt_oss(folder)
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    checkpoint = open_checkpoint(folder)
    check_parameters(checkpoint, parameter_shapes(checkpoint.spec))
    return checkpoint


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("down_proj_scales", None, "down_proj_scales is missing beside .*down_proj_blocks"),
        ("gate_up_proj_blocks", None, "gate_up_proj_blocks is missing beside .*gate_up_proj_scales"),
        ("down_proj_scales", torch.zeros(4, 32, 2), "down_proj_scales is stored as F32; it must be U8"),
        ("down_proj_scales", random_bytes(4, 32, 3), r"_blocks is \[4, 32, 2, 16\] and .*_scales is \[4, 32, 3\]"),
        ("down_proj_blocks", random_bytes(4, 32, 2, 8), r"they must be \[experts, out, blocks, 16\]"),
        ("down_proj_blocks", random_bytes(4, 32, 32), r"_blocks is \[4, 32, 32\]"),
    ],
)
def test_what_does_not_fit_together_is_named(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        changed(tmp_path, {f"{EXPERTS}.{name}": tensor})


def test_packed_experts_of_another_size_than_the_model_says_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"down_proj\.weight is \[5, 32, 64\], expected \[4, 32, 64\]"):
        changed(
            tmp_path,
            {
                f"{EXPERTS}.down_proj_blocks": random_bytes(5, 32, 2, 16),
                f"{EXPERTS}.down_proj_scales": random_bytes(5, 32, 2),
            },
        )
