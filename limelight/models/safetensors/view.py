"""A checkpoint seen through a view: some tensors presented under other names and in another form, the rest as stored.

Implements `Checkpoint` (see `checkpoint.py`) over another one and holds no tensor.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from limelight.models.loaded_model import SamplingDefaults
from limelight.models.spec import ModelSpec
from limelight.models.stored_blocks import StoredBlocks

if TYPE_CHECKING:
    from limelight.models.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class PresentedTensor:
    """A tensor that is not stored as it is presented.

    Attributes:
        parts: names of the stored tensors that it is made of; these are no longer presented themselves.
        shape, dtype: as presented.
        read: makes it, as `Checkpoint.tensor` does.
        blocks: as `Checkpoint.blocks`.
    """

    parts: Collection[str]
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    blocks: StoredBlocks | None = None


class CheckpointView:
    """See `Checkpoint`."""

    def __init__(self, stored: "Checkpoint", presented: Mapping[str, PresentedTensor]) -> None:
        self._stored = stored
        self._presented = presented
        parts = {part for tensor in presented.values() for part in tensor.parts}
        self._names = {name for name in stored.names() if name not in parts} | presented.keys()

    @property
    def spec(self) -> ModelSpec:
        """What the model is."""
        return self._stored.spec

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """Sampling settings that the model's authors recommend."""
        return self._stored.sampling_defaults

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors."""
        return self._stored.files

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return self._stored.stored_bytes

    def names(self) -> Collection[str]:
        """Names of all tensors, as presented."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        presented = self._presented.get(name)
        return self._stored.shape(name) if presented is None else presented.shape

    def dtype(self, name: str) -> str:
        """What `tensor` gives, without reading it."""
        presented = self._presented.get(name)
        return self._stored.dtype(name) if presented is None else presented.dtype

    def blocks(self, name: str) -> StoredBlocks | None:
        """What `tensor` gives as it is stored, if that is in blocks."""
        presented = self._presented.get(name)
        return self._stored.blocks(name) if presented is None else presented.blocks

    def tensor(self, name: str) -> Tensor:
        """One tensor; see `Checkpoint`."""
        presented = self._presented.get(name)
        return self._stored.tensor(name) if presented is None else presented.read()
