"""Parameters of a checkpoint in the form in which kernels want them, read one at a time and checked."""

import torch
from torch import Tensor

from limelight.errors import CheckpointError
from limelight.kernels.interface import Kernels, StoredTensor
from limelight.models.checkpoint import Checkpoint, check_finite
from limelight.models.gguf.blocks import PLAIN, has_finite_scales
from limelight.models.precision import Precision


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
        assert blocks is not None, "matrices are kept in blocks that the checkpoint has"
        stored = blocks.read()
        if not has_finite_scales(stored.format, stored.rows):
            raise CheckpointError(
                f"{self._source}: {name} holds {stored.format} blocks whose scales are not finite; download it again"
            )
        return stored

    def kept_as(self, name: str) -> torch.dtype | str:
        """The dtype or the format of `matrix(name)`, which is not read."""
        weights = self._precision.weights
        if weights is not None:
            return weights
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

    def _checked(self, tensor: Tensor, name: str) -> Tensor:
        check_finite(tensor, name, self._source)
        return tensor
