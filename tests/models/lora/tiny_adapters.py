"""Adapters with random weights, written as peft writes them, and the models that they make when merged."""

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
Matrices = dict[str, tuple[torch.Tensor, torch.Tensor]]


def linear_layers(model: Any, endings: tuple[str, ...]) -> dict[str, torch.nn.Linear]:
    """The linear layers of `model` whose names end so."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in endings
    }


def random_matrices(
    model: Any, endings: tuple[str, ...], rank: int, seed: int, ranks: Mapping[str, int] | None = None
) -> Matrices:
    """Module -> (A [rank, in], B [out, rank]); `ranks` by the last part of a module's name."""
    generator = torch.Generator().manual_seed(seed)
    found: Matrices = {}
    for name, module in linear_layers(model, endings).items():
        own = (ranks or {}).get(name.rpartition(".")[2], rank)
        down = torch.randn(own, module.in_features, generator=generator) * 0.3
        up = torch.randn(module.out_features, own, generator=generator) * 0.3
        found[name] = (down, up)
    return found


def settings_of(rank: int, alpha: float, targets: Any, **more: Any) -> dict[str, Any]:
    """`adapter_config.json`."""
    return {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": targets, "bias": "none", **more}


def save_adapter(folder: Path, matrices: Matrices, settings: Mapping[str, Any]) -> Path:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(dict(settings)))
    tensors = {}
    for name, (down, up) in matrices.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def merged(
    model: Any,
    matrices: Matrices,
    alpha: float,
    *,
    alphas: Mapping[str, float] | None = None,
    root_scaled: bool = False,
) -> Any:
    """A copy of `model` with W + scale * B A in place of W."""
    model = copy.deepcopy(model)
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, (down, up) in matrices.items():
            rank = down.shape[0]
            scale = (alphas or {}).get(name.rpartition(".")[2], alpha) / (math.sqrt(rank) if root_scaled else rank)
            modules[name].weight.add_(scale * up @ down)
    return model
