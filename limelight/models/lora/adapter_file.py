"""An adapter's folder: `adapter_config.json` and `adapter_model.safetensors`, checked against the base model.

Pickled weights (`adapter_model.bin`) are refused and never opened: unpickling runs code from the file. Names, shapes
and types are compared from the header, before any tensor is read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.kernels.interface import LowRank, LowRankPart
from limelight.models.layers import ProjectionShape
from limelight.models.lora.adapter_config import PICKLED, WEIGHTS, AdapterConfig
from limelight.models.safetensors.shard import open_shard
from limelight.models.wording import listed

PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
COPIES = frozenset(f"{PREFIX}{name}.weight" for name in ("lm_head.base_layer", "model.embed_tokens"))
"""What peft saves beside an adapter of the head: the base model's own matrices, as they were. They are not read."""
TYPES = ("F32", "F16", "BF16")


class AdapterWeights(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """An adapter as the forward pass uses it.

    Attributes:
        products: by the first name of a projection, what is added to its outputs.
        rank: the largest one.
        num_bytes: of all its tensors in memory.
    """

    products: Mapping[str, LowRank]
    rank: int
    num_bytes: int


class AdapterFile:
    """An adapter on disk that fits the base model: checked, not read yet.

    Attributes:
        rank: the largest rank of a module.
        num_values: of all its matrices.
    """

    def __init__(self, folder: Path, projections: Sequence[ProjectionShape], max_rank: int) -> None:
        """Open the folder and check it against the projections of the base model.

        Raises:
            CheckpointError: something is missing, corrupt, or does not fit; the message names all of it.
            UnsupportedModel: the adapter needs something that Limelight does not do, or its rank is above `max_rank`.
        """
        self._config = AdapterConfig(folder)
        self._projections = projections
        self._shard = _open(folder)
        self._path = folder / WEIGHTS
        widths = {
            name: (width, shape.num_inputs)
            for shape in projections
            for name, width in zip(shape.names, shape.widths, strict=True)
        }
        self._modules = self._check(widths)
        self._check_ranks(max_rank)
        self.rank = max(self._config.rank(name) for name in self._modules)
        self.num_values = sum(self._config.rank(name) * sum(widths[name]) for name in self._modules)

    def read(self, dtype: torch.dtype, device: str) -> AdapterWeights:
        """The weights, the scale being part of B.

        Raises:
            CheckpointError: a value is not finite.
        """
        products: dict[str, LowRank] = {}
        with torch.inference_mode():
            for shape in self._projections:
                product = self._product(shape, dtype, device)
                if product is not None:
                    products[shape.names[0]] = product
        return AdapterWeights(products=products, rank=self.rank, num_bytes=self.num_values * dtype.itemsize)

    def _product(self, shape: ProjectionShape, dtype: torch.dtype, device: str) -> LowRank | None:
        downs: list[Tensor] = []
        parts: list[LowRankPart] = []
        first_output = 0
        for name, width in zip(shape.names, shape.widths, strict=True):
            if name in self._modules:
                downs.append(self._matrix(name, DOWN, 1.0, dtype))
                up = self._matrix(name, UP, self._config.scale(name), dtype)
                # In memory the outputs lie side by side, as products with few rows read them fastest.
                parts.append(LowRankPart(first_output=first_output, up=up.T.contiguous().to(device).T))
            first_output += width
        return LowRank(down=torch.cat(downs).to(device), parts=tuple(parts)) if parts else None

    def _matrix(self, module: str, kind: str, scale: float, dtype: torch.dtype) -> Tensor:
        name = self._modules[module] + kind
        stored: Tensor = self._shard.get_tensor(name)
        # A copy in any case: the file is not kept open, nor trusted to stay as it is.
        matrix = (stored.to(torch.float32, copy=True) * scale).to(dtype)
        if not bool(matrix.isfinite().all()):
            raise CheckpointError(f"{self._path}: {name} holds values that are not finite in {dtype}; train it again")
        return matrix

    def _check(self, widths: Mapping[str, tuple[int, int]]) -> dict[str, str]:
        """Module -> its name in the file, for all modules that are adapted."""
        stored = frozenset(self._shard.keys())
        modules: dict[str, str] = {}
        faults: list[str] = []
        for name in sorted(stored):
            if name in COPIES and "lm_head" in widths and self._shape(name) == widths["lm_head"]:
                continue
            module = name.removesuffix(DOWN).removesuffix(UP)
            canonical = module.removeprefix(PREFIX)
            if module in (name, canonical) or canonical not in widths:
                faults.append(f"{name} belongs to no linear layer of this model (experts and embeddings take none)")
            elif self._config.targets(canonical) is False:
                faults.append(f"{name} belongs to a module that {self._config.source} does not target")
            else:
                modules[canonical] = module
        for module, (width, num_inputs) in widths.items():
            if module in modules:
                rank = self._config.rank(module)
                faults += self._misfits(modules[module] + DOWN, (rank, num_inputs), stored)
                faults += self._misfits(modules[module] + UP, (width, rank), stored)
            elif self._config.targets(module):
                faults.append(f"{PREFIX}{module}{DOWN} is missing")
        if faults:
            shown = listed(faults, separator="; ")
            raise CheckpointError(f"{self._path} does not fit the model: {shown}")
        if not modules:
            raise CheckpointError(f"{self._path} holds no tensor; save the adapter again")
        return modules

    def _misfits(self, name: str, expected: tuple[int, int], stored: frozenset[str]) -> list[str]:
        if name not in stored:
            return [f"{name} is missing"]
        if self._shape(name) != expected:
            return [f"{name} is {list(self._shape(name))}, expected {list(expected)}"]
        kind = self._shard.get_slice(name).get_dtype()
        return [] if kind in TYPES else [f"{name} is stored as {kind}, which is none of {', '.join(TYPES)}"]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._shard.get_slice(name).get_shape())

    def _check_ranks(self, max_rank: int) -> None:
        for module in self._modules:
            if self._config.rank(module) > max_rank:
                raise UnsupportedModel(
                    f"{self._config.source}: the rank at {module} is {self._config.rank(module)}, and this engine "
                    f"takes at most {max_rank}; raise max_lora_rank"
                )


def _open(folder: Path) -> Any:
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / PICKLED).is_file():
            raise CheckpointError(
                f"{folder} holds only pickled weights ({PICKLED}), which can run code and are never loaded; "
                "save the adapter as safetensors"
            )
        raise CheckpointError(f"{folder} holds no {WEIGHTS}; an adapter's folder needs it beside its settings")
    return open_shard(path)
