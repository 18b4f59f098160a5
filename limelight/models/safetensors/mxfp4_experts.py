"""Experts of gpt-oss as its makers publish them: four-bit floats with a shared exponent (MXFP4), in blocks or expanded.

OCP Microscaling Formats (MX) 1.0: blocks of 32 values E2M1, two to a byte, the first in the lower bits, and a power of
two for each block. Stored are `experts.gate_up_proj_blocks` [experts, 2 * inner, blocks, 16] and `_scales` [experts,
2 * inner, blocks], rows of gate and up alternating, and the same for `down_proj` [experts, hidden, ...].
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from limelight.errors import CheckpointError
from limelight.kernels.interface import StoredTensor
from limelight.models.quantization.fp4 import E2M1, powers_of_two
from limelight.models.safetensors.checkpoint import SafetensorsCheckpoint
from limelight.models.safetensors.view import CheckpointView, PresentedTensor
from limelight.models.stored_blocks import StoredBlocks

if TYPE_CHECKING:
    from limelight.models.checkpoint import Checkpoint

PART = re.compile(r"(model\.layers\.\d+\.mlp\.experts\.(?:gate_up|down)_proj)_(?:blocks|scales)")
BLOCK_BYTES = 16
FORMAT = "MXFP4"
Made = TypeVar("Made")


def mxfp4_experts(stored: SafetensorsCheckpoint) -> "Checkpoint":
    """`stored` with its packed experts as bfloat16, in the form of `stacked_experts`; itself if it has none.

    Raises:
        CheckpointError: blocks without scales, scales without blocks, or sizes that do not belong together.
    """
    if stored.spec.architecture != "gpt_oss":
        return stored
    presented: dict[str, PresentedTensor] = {}
    for name in sorted({match[1] for stored_name in stored.names() if (match := PART.fullmatch(stored_name))}):
        experts, outputs, inputs = _shape(stored, name)
        prefix = name.rpartition(".")[0]
        if name.endswith("down_proj"):
            pieces = {"down_proj": slice(None)}
        else:
            pieces = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
        for piece, rows in pieces.items():
            presented[f"{prefix}.{piece}.weight"] = PresentedTensor(
                parts=(f"{name}_blocks", f"{name}_scales"),
                shape=(experts, len(range(outputs)[rows]), inputs),
                dtype="bfloat16",
                read=_reader(stored, name, rows, expand),
                blocks=StoredBlocks(FORMAT, _reader(stored, name, rows, in_blocks)),
            )
    return CheckpointView(stored, presented) if presented else stored


def expand(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 [experts, out, blocks, 16] and uint8 [experts, out, blocks] -> bfloat16 [experts, out, 32 * blocks].

    Every value is exact in bfloat16.
    """
    values = torch.tensor(E2M1, dtype=torch.bfloat16)
    # Both values of each byte: the lower bits are the row's place, the upper ones its block.
    pairs = torch.stack((values.repeat(16), values.repeat_interleave(16)), 1)
    experts, outputs, num_blocks, _ = blocks.shape
    expanded = torch.empty(experts, outputs, num_blocks, 2 * BLOCK_BYTES, dtype=torch.bfloat16)
    for expert in range(experts):  # what is in the works stays small
        found = pairs.index_select(0, blocks[expert].flatten().to(torch.int32)).view(outputs, num_blocks, -1)
        powers = powers_of_two(scales[expert]).to(torch.bfloat16)
        torch.mul(found, powers.unsqueeze(-1), out=expanded[expert])
    return expanded.view(experts, outputs, -1)


def in_blocks(blocks: Tensor, scales: Tensor) -> StoredTensor:
    """The same tensors as blocks of a GGUF file: a byte of scale, then the codes, those of the first 16 values in the
    lower bits and those of the last 16 in the upper ones.
    """
    experts, outputs, num_blocks, _ = blocks.shape
    rows = torch.empty(experts, outputs, num_blocks, 1 + BLOCK_BYTES, dtype=torch.uint8)
    rows[..., 0] = scales
    for expert in range(experts):  # what is in the works stays small
        first, last = blocks[expert, ..., : BLOCK_BYTES // 2], blocks[expert, ..., BLOCK_BYTES // 2 :]
        rows[expert, ..., 1::2] = (first & 0x0F) | (last << 4)
        rows[expert, ..., 2::2] = (first >> 4) | (last & 0xF0)
    return StoredTensor(FORMAT, (experts, outputs, num_blocks * 2 * BLOCK_BYTES), rows.view(experts, -1).numpy())


def _reader(
    stored: SafetensorsCheckpoint, name: str, rows: slice, made: Callable[[Tensor, Tensor], Made]
) -> Callable[[], Made]:
    return lambda: made(stored.packed(f"{name}_blocks")[:, rows], stored.packed(f"{name}_scales")[:, rows])


def _shape(stored: SafetensorsCheckpoint, name: str) -> tuple[int, int, int]:
    """[experts, out, in] of the matrices that a pair of tensors holds."""
    blocks, scales = f"{name}_blocks", f"{name}_scales"
    for part, other in ((blocks, scales), (scales, blocks)):
        if part not in stored.names():
            raise CheckpointError(f"{part} is missing beside {other}; download the model again")
        if stored.type(part) != "U8":
            raise CheckpointError(f"{part} is stored as {stored.type(part)}; it must be U8")
    shape = stored.shape(blocks)
    if len(shape) != 4 or shape[3] != BLOCK_BYTES or stored.shape(scales) != shape[:3]:
        raise CheckpointError(
            f"{blocks} is {list(shape)} and {scales} is {list(stored.shape(scales))}; they must be "
            f"[experts, out, blocks, {BLOCK_BYTES}] and [experts, out, blocks]"
        )
    return shape[0], shape[1], shape[2] * 2 * BLOCK_BYTES
