"""The adapters of a loaded model: read on any thread, put and dropped on the thread that submits steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from limelight.errors import OutOfMemory
from limelight.kernels.interface import DTYPE_BYTES
from limelight.models import loaded_model
from limelight.models.hub import resolve_adapter
from limelight.models.layers import ProjectionShape
from limelight.models.wording import as_size
from limelight.progress import Report

if TYPE_CHECKING:
    from limelight.models.lora.adapter_file import AdapterWeights

MAX_SHARE_OF_FREE_MEMORY = 0.9
"""An adapter may take this much of what is free: the rest is for the step that runs meanwhile."""


class AdapterTable:
    """See `AdapterLoader`.

    Args:
        projections: of the base model.
        dtype, device: where the model computes.
        max_rank: a larger one is refused.
        free_bytes: memory that is free on the device now, or None where that cannot be found out.

    Attributes:
        weights: by adapter id; the executor reads it, `put` and `drop` change it, all on one thread.
    """

    def __init__(
        self,
        projections: Sequence[ProjectionShape],
        dtype: str,
        device: str,
        max_rank: int,
        free_bytes: Callable[[], int | None],
    ) -> None:
        self._projections = projections
        self._dtype = dtype
        self._device = device
        self._max_rank = max_rank
        self._free_bytes = free_bytes
        self.weights: dict[int, AdapterWeights] = {}

    def read(self, path: str, report: Report) -> AdapterWeights:
        """The adapter in the folder `path` or on the hub, checked against the base model and in memory.

        Raises:
            CheckpointError: the folder does not exist, or what is in it does not fit the model.
            UnsupportedModel: the adapter needs something that Limelight does not do.
            OutOfMemory: it does not fit into what is free.
            ModelError: the hub does not give it.
        """
        # Imported only now: adapters are tensors, and a server without any does without torch.
        from limelight.kernels.torch_dtypes import TORCH_DTYPES
        from limelight.models.lora.adapter_file import AdapterFile

        folder = resolve_adapter(path, None, report)
        file = AdapterFile(folder, self._projections, self._max_rank)
        needed, free = file.num_values * DTYPE_BYTES[self._dtype], self._free_bytes()
        if free is not None and needed > free * MAX_SHARE_OF_FREE_MEMORY:
            raise OutOfMemory(
                f"the adapter in {path} takes {as_size(needed)} and {as_size(free)} are free; unload another one, "
                "or give the KV pool less"
            )
        return file.read(TORCH_DTYPES[self._dtype], self._device)

    def put(self, adapter: int, weights: loaded_model.AdapterWeights) -> None:
        """Let steps use `weights` under the id `adapter`."""
        from limelight.models.lora.adapter_file import AdapterWeights

        assert isinstance(weights, AdapterWeights), "what is put was read here"
        self.weights[adapter] = weights

    def drop(self, adapter: int) -> None:
        """Forget an adapter that no running sequence uses; its memory is free when this returns."""
        del self.weights[adapter]
