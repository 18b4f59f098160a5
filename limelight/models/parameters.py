"""Parameters of a checkpoint in the form in which kernels want them, read one at a time and checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from limelight.errors import CheckpointError
from limelight.kernels.interface import DTYPE_BYTES, Kernels, Numbers, StoredTensor
from limelight.models.checkpoint import Checkpoint, check_finite
from limelight.models.decoder import EMBEDDING, HEAD
from limelight.models.gguf.blocks import BLOCKS, PLAIN, is_finite, to_float32
from limelight.models.precision import Precision
from limelight.models.stored_blocks import StoredBlocks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCORES = re.compile(r"\.mlp\.(gate|router|shared_expert_gate)\.weight$")
"""Matrices that choose experts, which are small and matter much: they are never quantised."""
TABLES = (f"{HEAD}.weight", EMBEDDING)
MATRIX_DIMENSIONS = 2
"""Matrices of experts have one more."""


class Parameters:
    """See `layers.Parameters`."""

    def __init__(self, checkpoint: Checkpoint, kernels: Kernels, precision: Precision) -> None:
        self._checkpoint = checkpoint
        self._kernels = kernels
        self._precision = precision

    def plain(self, name: str) -> Numbers:
        """The tensor in the dtype that is computed in, on the kernels' device.

        Raises:
            CheckpointError: it holds values that are not finite in this dtype.
        """
        values = self._values(name) if self._precision.values == "float32" else None
        if values is None:
            return self._checked(self._converted(self._checkpoint.tensor(name), self._precision.values), name)
        return self._kernels.numbers(values)

    def matrix(self, name: str) -> Tensor | StoredTensor:
        """The matrix in the form in which it is kept.

        Raises:
            CheckpointError: it holds values that are not finite.
        """
        kept = self.kept_as(name)
        stored = self._blocks(name, kept)
        if stored is not None:
            return self._checked_blocks(stored, name)
        if kept == "float32" and (values := self._values(name)) is not None:
            return StoredTensor("F32", values.shape, values.reshape(len(values), -1).view(np.uint8))
        if kept in DTYPE_BYTES:
            return self._checked(self._converted(self._tensor(name, kept), kept), name)
        return self._quantized(name, kept)

    def kept_as(self, name: str) -> str:
        """The dtype or the format of `matrix(name)`, which is not read."""
        weights, plain = self._precision.weights, self._precision.plain
        if weights in DTYPE_BYTES:
            return weights
        shape = self._checkpoint.shape(name)
        if plain is not None and (name in TABLES or len(shape) > MATRIX_DIMENSIONS):
            return plain
        stored = self._stored_as(name)
        if weights is None or SCORES.search(name):
            return stored
        if name in TABLES:
            weights = self._precision.tables
        return weights if self._is_smaller(name, weights, stored) else stored

    def _stored_as(self, name: str) -> str:
        """The dtype or the format in which the kernels get what is stored."""
        blocks = self._stored_blocks(name)
        stored = self._checkpoint.dtype(name) if blocks is None else PLAIN.get(blocks.format, blocks.format)
        plain = self._precision.plain
        if stored in self._kernels.stored_formats and (plain is None or self._is_smaller(name, stored, plain)):
            return stored
        if plain is not None:
            return plain
        return stored if stored in DTYPE_BYTES else self._checkpoint.dtype(name)

    def _is_smaller(self, name: str, kept: str, other: str) -> bool:
        outputs, inputs = self._checkpoint.shape(name)[-2:]
        packed_bytes = self._kernels.packed_bytes
        return packed_bytes((outputs, inputs), kept) < packed_bytes((outputs, inputs), other)

    def _stored_blocks(self, name: str) -> StoredBlocks | None:
        """In the format that keeps most of what the kernels take."""
        blocks = self._checkpoint.blocks(name)
        if blocks is not None and blocks.closest is not None and blocks.closest.format in self._kernels.stored_formats:
            return blocks.closest
        return blocks

    @property
    def _source(self) -> str:
        return str(self._checkpoint.files[0].parent)

    def _blocks(self, name: str, kept: str | None = None) -> StoredTensor | None:
        """The tensor as it is stored, if that is how the kernels take it, and what it is `kept` as."""
        blocks = self._stored_blocks(name)
        if blocks is None or blocks.format not in self._kernels.stored_formats:
            return None
        return blocks.read() if kept in (None, PLAIN.get(blocks.format, blocks.format)) else None

    def _values(self, name: str) -> NDArray[np.float32] | None:
        """The tensor in float32 without torch, if it is stored in blocks that hold it and that the kernels take."""
        if (blocks := self._checkpoint.blocks(name)) is None or not blocks.is_exact:
            return None
        stored = self._blocks(name)
        if stored is None:
            return None
        values = to_float32(np.ascontiguousarray(stored.rows), stored.format, stored.shape)
        check_finite(values, name, self._source)
        return values

    def _tensor(self, name: str, dtype: str) -> Tensor:
        """Plain numbers of a GGUF file are shared with it, instead of expanded to float32 first."""
        blocks = self._checkpoint.blocks(name)
        if blocks is not None and PLAIN.get(blocks.format) == dtype:
            import torch

            stored = blocks.read()
            return torch.from_numpy(stored.rows).view(_torch_dtype(dtype)).reshape(stored.shape)
        return self._checkpoint.tensor(name)

    def _converted(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.to(self._kernels.device, _torch_dtype(dtype))

    def _quantized(self, name: str, format_name: str) -> StoredTensor:
        values = self._values(name)
        matrix = self._checked(self._checkpoint.tensor(name), name) if values is None else values
        try:
            return self._kernels.quantize(matrix, format_name)
        except ValueError as error:
            raise CheckpointError(f'{self._source}: {name}: {error}; load it with quantize "auto"') from error

    def _checked_blocks(self, stored: StoredTensor, name: str) -> StoredTensor:
        if (stored.format in BLOCKS or stored.format in PLAIN) and not is_finite(stored.format, stored.rows):
            what = "values that" if stored.format in PLAIN else "blocks whose scales"
            raise CheckpointError(
                f"{self._source}: {name} holds {stored.format} {what} are not finite; download it again"
            )
        return stored

    def _checked(self, tensor: Tensor, name: str) -> Tensor:
        check_finite(tensor, name, self._source)
        return tensor


def _torch_dtype(name: str) -> torch.dtype:
    from limelight.kernels.torch_dtypes import TORCH_DTYPES

    return TORCH_DTYPES[name]
