"""Tiny models quantised by packers of our own, written from the published layouts: bit by bit, slow and plain.

A packer turns a weight into the tensors that a tool would store and into the weight that they stand for.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from limelight.models.quantization.scheme import Stored

Packed = tuple[dict[str, Tensor], Tensor]
"""Parts by their names in the module, and the float32 weight that they stand for."""
Packer = Callable[[str, Tensor], Packed | None]
"""(module, weight) -> how it is stored; None: as it is."""


@dataclass
class Levels:
    """A matrix [out, in] as unsigned levels: weight = (levels - zeros[group]) * scales[group]."""

    levels: Tensor
    scales: Tensor
    zeros: Tensor
    groups: Tensor

    @property
    def weight(self) -> Tensor:
        zeros, scales = self.zeros[:, self.groups], self.scales.float()[:, self.groups]
        return (self.levels - zeros).float() * scales


def quantize(
    weight: Tensor, bits: int, group_size: int = -1, *, symmetric: bool = False, sorted_by: int | None = None
) -> Levels:
    """Round to nearest. `sorted_by`: seed of the order in which inputs were put into groups, if not in turn."""
    outputs, inputs = weight.shape
    size = inputs if group_size == -1 else group_size
    order = torch.arange(inputs)
    if sorted_by is not None:
        order = torch.randperm(inputs, generator=torch.Generator().manual_seed(sorted_by))
    groups = torch.empty(inputs, dtype=torch.int64)
    groups[order] = torch.arange(inputs) // size
    num_groups = -(-inputs // size)
    top = 2**bits - 1
    scales = torch.empty(outputs, num_groups)
    zeros = torch.empty(outputs, num_groups, dtype=torch.int64)
    for group in range(num_groups):
        values = weight[:, groups == group]
        low, high = values.amin(1).clamp(max=0), values.amax(1).clamp(min=0)
        if symmetric:
            scales[:, group] = torch.maximum(-low, high) * 2 / top
            zeros[:, group] = (top + 1) // 2
        else:
            scales[:, group] = (high - low) / top
            zeros[:, group] = (-low / scales[:, group]).round().clamp(1, top).to(torch.int64)
    scales = scales.half()
    levels = (weight / scales.float()[:, groups]).round().to(torch.int64) + zeros[:, groups]
    return Levels(levels.clamp(0, top), scales, zeros, groups)


def words_of(values: list[int], bits: int) -> list[int]:
    """One long number, value 0 in its lowest bits, cut into signed 32-bit words."""
    number = sum((value & (2**bits - 1)) << (bits * place) for place, value in enumerate(values))
    words = [(number >> (32 * word)) & 0xFFFFFFFF for word in range(-(-bits * len(values) // 32))]
    return [word - 2**32 if word >= 2**31 else word for word in words]


def pack_rows(values: Tensor, bits: int) -> Tensor:
    """[rows, values] -> int32 [rows, words]."""
    return torch.tensor([words_of(row, bits) for row in values.tolist()], dtype=torch.int32)


def gptq_parts(quantized: Levels, bits: int, *, v2: bool = False) -> dict[str, Tensor]:
    """As AutoGPTQ stores a module: levels along the inputs, zeros along the outputs, the older ones minus one."""
    return {
        "qweight": pack_rows(quantized.levels, bits).t().contiguous(),
        "qzeros": pack_rows(quantized.zeros.t() - (0 if v2 else 1), bits),
        "scales": quantized.scales.t().contiguous(),
        "g_idx": quantized.groups.to(torch.int32),
    }


def awq_parts(quantized: Levels) -> dict[str, Tensor]:
    """As AutoAWQ's GEMM stores a module: of eight neighbouring outputs 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits."""

    def interleaved(values: Tensor) -> Tensor:
        rows, outputs = values.shape
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        return pack_rows(values.view(rows, outputs // 8, 8)[:, :, order].reshape(rows, outputs), 4)

    return {
        "qweight": interleaved(quantized.levels.t().contiguous()),
        "qzeros": interleaved(quantized.zeros.t().contiguous()),
        "scales": quantized.scales.t().contiguous(),
    }


def awq_gemv_parts(quantized: Levels, group_size: int) -> dict[str, Tensor]:
    """As AutoAWQ's GEMV stores a module: all along the inputs, groups padded to whole words and more for small ones."""
    groups = quantized.scales.shape[1]
    multiple = {64: 2, 32: 4}.get(group_size, 1)
    words = -(-groups // 8)
    words = -(-words // multiple) * multiple
    padding = (0, words * 8 - groups)
    return {
        "qweight": pack_rows(quantized.levels, 4),
        "qzeros": pack_rows(torch.nn.functional.pad(quantized.zeros, padding), 4),
        "scales": torch.nn.functional.pad(quantized.scales, padding),
    }


def stored_as(parts: dict[str, Tensor]) -> dict[str, Stored]:
    """What the header of a file says of these tensors."""
    names = {
        torch.int64: "I64", torch.int32: "I32", torch.int8: "I8", torch.uint8: "U8", torch.float32: "F32",
        torch.float16: "F16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
        torch.float8_e8m0fnu: "F8_E8M0",
    }  # fmt: skip
    return {name: Stored(names[tensor.dtype], tuple(tensor.shape), tensor.clone) for name, tensor in parts.items()}


def save_quantized(model: Any, folder: Path, settings: dict[str, Any] | None, pack: Packer) -> None:
    """Save `model` with its layers' matrices packed, and make its weights what they stand for.

    Args:
        settings: `quantization_config`; None leaves it out.
    """
    model.save_pretrained(folder)
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module, _, part = name.rpartition(".")
            packed = pack(module, parameter.detach().clone()) if part == "weight" and parameter.dim() == 2 else None
            if packed is None:
                tensors[name] = parameter.detach().clone()
                continue
            parts, weight = packed
            tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
            parameter.copy_(weight)
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if settings is not None:
        config["quantization_config"] = settings
    path.write_text(json.dumps(config))


def save_quantized_experts(
    model: Any, folder: Path, settings: dict[str, Any], pack: Callable[[Tensor], Packed]
) -> None:
    """The same for a mixture of experts, which transformers holds as one tensor and the hub stores one by one."""
    experts: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module, _, part = name.rpartition(".")
            if not module.endswith(".experts"):
                continue
            for expert, matrix in enumerate(parameter):
                halves = matrix.chunk(2) if part == "gate_up_proj" else (matrix,)
                names = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
                for projection, half in zip(names, halves, strict=True):
                    parts, weight = pack(half.clone())
                    half.copy_(weight)
                    experts |= {f"{module}.{expert}.{projection}.{key}": value for key, value in parts.items()}
    plain = ("mlp.gate", "embed_tokens", "lm_head")
    save_quantized(model, folder, settings, lambda module, weight: None if module.endswith(plain) else pack(weight))
    path = folder / "model.safetensors"
    kept = {name: tensor.clone() for name, tensor in load_file(path).items() if ".experts." not in name}
    save_file(kept | experts, path)


def of_layers(pack: Callable[[Tensor], Packed]) -> Packer:
    """`pack` for the matrices of layers; embedding and head stay plain."""
    return lambda module, weight: pack(weight) if ".layers." in module else None
