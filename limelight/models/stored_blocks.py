"""Tensors that checkpoints hold in blocks of quantised numbers, for kernels that multiply with them as they are."""

from collections.abc import Callable
from typing import NamedTuple

from limelight.kernels.interface import StoredTensor


class StoredBlocks(NamedTuple):
    """A tensor that is stored in blocks, not read yet.

    Attributes:
        format: name of the blocks' format.
        read: gives them, sharing memory with the file where it can.
        is_exact: they hold what `Checkpoint.tensor` gives, and do not round it.
        closest: the same in a format closer to the file, which fewer kernels take, and which says itself if values are
            not finite; None if there is none.
    """

    format: str
    read: Callable[[], StoredTensor]
    is_exact: bool = True
    closest: "StoredBlocks | None" = None
