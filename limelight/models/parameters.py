"""Parameters of a checkpoint in the form in which kernels want them, read one at a time and checked."""

import re

import torch
from torch import Tensor

from limelight.errors import CheckpointError
from limelight.kernels.interface import Kernels, StoredTensor
from limelight.models.checkpoint import Checkpoint, check_finite
from limelight.models.decoder import EMBEDDING, HEAD
from limelight.models.gguf.blocks import PLAIN, has_finite_scales
from limelight.models.precision import Precision

SCORES = re.compile(r"\.mlp\.(gate|router|shared_expert_gate)\.weight$")
"""Matrices that choose experts, which are small and matter much: they are never quantised."""
TABLES = (f"{HEAD}.weight", EMBEDDING)
TABLE_FORMAT = "Q8_0"
"""Of embedding and head where the rest is quantised: each row is a whole token."""


class Parameters:
    """See `layers.Parameters`."""

    def __init__(self, checkpoint: Checkpoint, kernels: Kernels, precision: Precision) -> None:
        self._checkpoint = checkpoint
        self._kernels = kernels
        self._precision = precision

    def plain(self, name: str) -> Tensor:
        """The tensor in the dtype that is computed in, on the kernels' device.

        Raises:
            CheckpointError: it holds values that are not finite in this dtype.
        """
        return self._checked(self._checkpoint.tensor(name).to(self._kernels.device, self._precision.values), name)

    def matrix(self, name: str) -> Tensor | StoredTensor:
        """The matrix in the form in which it is kept.

        Raises:
            CheckpointError: it holds values that are not finite.
        """
        kept = self.kept_as(name)
        if isinstance(kept, torch.dtype):
            return self._checked(self._tensor(name, kept).to(self._kernels.device, kept), name)
        blocks = self._checkpoint.blocks(name)
        if blocks is None or blocks.format != kept:
            return self._quantized(name, kept)
        stored = blocks.read()
        if not has_finite_scales(stored.format, stored.rows):
            raise CheckpointError(
                f"{self._source}: {name} holds {stored.format} blocks whose scales are not finite; download it again"
            )
        return stored

    def kept_as(self, name: str) -> torch.dtype | str:
        """The dtype or the format of `matrix(name)`, which is not read."""
        weights = self._precision.weights
        if isinstance(weights, torch.dtype):
            return weights
        stored = self._stored_as(name)
        if weights is None or SCORES.search(name):
            return stored
        if name in TABLES:
            weights = TABLE_FORMAT
        outputs, inputs = self._checkpoint.shape(name)[-2:]
        packed_bytes = self._kernels.packed_bytes
        return weights if packed_bytes((outputs, inputs), weights) < packed_bytes((outputs, inputs), stored) else stored

    def _stored_as(self, name: str) -> torch.dtype | str:
        """The dtype or the format in which the kernels get what is stored."""
        blocks = self._checkpoint.blocks(name)
        if blocks is None:
            return self._checkpoint.dtype(name)
        if blocks.format in PLAIN:
            return PLAIN[blocks.format]
        return blocks.format if blocks.format in self._kernels.stored_formats else self._checkpoint.dtype(name)

    @property
    def _source(self) -> str:
        return str(self._checkpoint.files[0].parent)

    def _tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """Plain numbers of a GGUF file are shared with it, instead of expanded to float32 first."""
        blocks = self._checkpoint.blocks(name)
        if blocks is not None and PLAIN.get(blocks.format) == dtype:
            stored = blocks.read()
            return stored.rows.view(dtype).reshape(stored.shape)
        return self._checkpoint.tensor(name)

    def _quantized(self, name: str, format_name: str) -> StoredTensor:
        tensor = self._checked(self._checkpoint.tensor(name), name)
        try:
            return self._kernels.quantize(tensor, format_name)
        except ValueError as error:
            raise CheckpointError(f'{self._source}: {name}: {error}; load it with quantize "auto"') from error

    def _checked(self, tensor: Tensor, name: str) -> Tensor:
        check_finite(tensor, name, self._source)
        return tensor
