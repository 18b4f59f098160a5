"""Experts in their one canonical form, whatever the form in which safetensors hold them.

Canonical are `mlp.experts.{gate,up,down}_proj.weight` [experts, out, in] and `.bias` [experts, out]. Stored are:

- one tensor per expert, `experts.3.gate_proj.weight` (the hub's Qwen models, and what transformers saves);
- `experts.gate_up_proj` [experts, 2 * inner, hidden] and `experts.down_proj` [experts, hidden, inner], the gate's rows
  first (the parameters of transformers 5);
- gpt-oss: the same two transposed, the columns of gate and up alternating, with biases.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from limelight.errors import CheckpointError
from limelight.kernels.interface import StoredTensor
from limelight.models.safetensors.view import CheckpointView, PresentedTensor
from limelight.models.stored_blocks import StoredBlocks
from limelight.models.wording import listed

if TYPE_CHECKING:
    from limelight.models.checkpoint import Checkpoint

ONE_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(0|[1-9]\d{0,5})\.(gate|up|down)_proj\.(weight|bias)")
FUSED = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(gate_up|down)_proj(_bias)?")
INTERLEAVED = frozenset({"gpt_oss"})
"""Architectures whose fused matrices are [experts, in, out], gate and up alternating."""


def stacked_experts(stored: "Checkpoint") -> "Checkpoint":
    """`stored` with its experts in canonical form; itself if it has none in another form.

    Raises:
        CheckpointError: experts are missing, or of sizes that do not fit the model.
    """
    settings = stored.spec.experts
    if settings is None:
        return stored
    presented: dict[str, PresentedTensor] = {}
    groups: dict[str, dict[int, str]] = {}
    for name in stored.names():
        if match := ONE_EXPERT.fullmatch(name):
            prefix, expert, projection, kind = match.groups()
            # Experts beyond the model's own stay as they are, and are refused as unused by the name they have.
            if int(expert) < settings.num_experts:
                groups.setdefault(f"{prefix}.{projection}_proj.{kind}", {})[int(expert)] = name
        elif match := FUSED.fullmatch(name):
            presented |= _split(stored, name, *match.groups())
    for name, members in groups.items():
        if name in presented:
            raise CheckpointError(f"{name} is stored twice: fused and one tensor per expert; remove one of them")
        presented[name] = _stack(stored, name, members, settings.num_experts)
    return CheckpointView(stored, presented) if presented else stored


def _stack(stored: "Checkpoint", name: str, members: dict[int, str], num_experts: int) -> PresentedTensor:
    missing = [expert for expert in range(num_experts) if expert not in members]
    if missing:
        raise CheckpointError(
            f"{name} lacks {len(missing)} of the {num_experts} experts that {stored.spec.source} promises: "
            f"{listed(missing)}; download the model again"
        )
    names = [members[expert] for expert in range(num_experts)]
    shape = stored.shape(names[0])
    for other in names:
        if stored.shape(other) != shape:
            raise CheckpointError(
                f"{other} is {list(stored.shape(other))}, but {names[0]} is {list(shape)}; experts are all of one size"
            )
    return PresentedTensor(
        names,
        (num_experts, *shape),
        _common_dtype({stored.dtype(part) for part in names}),
        lambda: torch.stack([stored.tensor(part) for part in names]),
        _stacked_blocks(stored, names, shape),
    )


def _stacked_blocks(stored: "Checkpoint", names: list[str], shape: tuple[int, ...]) -> StoredBlocks | None:
    """Experts that are all stored in blocks of one format."""
    blocks = [found for name in names if (found := stored.blocks(name)) is not None]
    if len(blocks) < len(names) or len({one.format for one in blocks}) > 1:
        return None

    def read() -> StoredTensor:
        rows = np.stack([one.read().rows.reshape(-1) for one in blocks])
        return StoredTensor(blocks[0].format, (len(blocks), *shape), rows)

    return StoredBlocks(blocks[0].format, read, all(one.is_exact for one in blocks))


def _common_dtype(dtypes: set[str]) -> str:
    """What tensors of these dtypes become when they are stacked."""
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def _split(
    stored: "Checkpoint", name: str, prefix: str, projection: str, bias: str | None
) -> dict[str, PresentedTensor]:
    """What one fused tensor holds."""
    shape, kind = stored.shape(name), "bias" if bias else "weight"
    interleaved = stored.spec.architecture in INTERLEAVED
    if len(shape) != (2 if bias else 3):
        raise CheckpointError(f"{name} is {list(shape)}; it must have {2 if bias else 3} dimensions, experts first")
    if interleaved and not bias:
        shape = (shape[0], shape[2], shape[1])

    def upright() -> Tensor:
        tensor = stored.tensor(name)
        return tensor.transpose(1, 2) if interleaved and not bias else tensor

    if projection == "down":
        return {f"{prefix}.down_proj.{kind}": PresentedTensor((name,), shape, stored.dtype(name), upright)}
    if shape[1] % 2:
        raise CheckpointError(f"{name} is {list(stored.shape(name))}; gate and up must have equally many rows")
    inner = shape[1] // 2
    rows = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, inner), slice(inner, None))
    half = (shape[0], inner, *shape[2:])
    return {
        f"{prefix}.{part}_proj.{kind}": PresentedTensor((name,), half, stored.dtype(name), _rows_of(upright, chosen))
        for part, chosen in zip(("gate", "up"), rows, strict=True)
    }


def _rows_of(read: Callable[[], Tensor], rows: slice) -> Callable[[], Tensor]:
    return lambda: read()[:, rows]
