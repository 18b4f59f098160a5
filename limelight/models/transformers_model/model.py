"""Any decoder that transformers can build, run over Limelight's pages: the same batches as models of our own layers.

transformers computes embedding, projections, norms, experts and head; attention and all that is kept of a sequence is
ours. A batch is one flat row of tokens with their positions.
"""

from typing import Any

import torch
from torch import Tensor

from limelight.kernels.interface import Kernels
from limelight.models.forward_batch import ForwardBatch
from limelight.models.layers import ProjectionShape
from limelight.models.transformers_model.attention import PagedAttender
from limelight.models.transformers_model.probe import Attendance, forward


class TransformersModel:
    """Weights and forward pass. The KV pool is passed in.

    Attributes:
        adaptable: no projection: adapters change those of our own layers only.
    """

    adaptable: tuple[ProjectionShape, ...] = ()

    def __init__(self, module: Any, attendance: Attendance, kernels: Kernels, dtype: torch.dtype) -> None:
        """Wrap a model that holds its weights.

        Args:
            module: transformers' decoder.
            dtype: of the KV pool.
        """
        self._module = module
        self._kernels = kernels
        self._layers = {module.get_submodule(name): layer for layer, name in enumerate(attendance.layers)}
        self._head_dim = attendance.head_dim
        self._dtype = dtype

    def forward(self, batch: ForwardBatch, kv: Any) -> Tensor:
        """Write keys and values of all rows; logits [sampled, vocab] float32 of the rows that draw a token."""
        plan = self._kernels.plan(batch.attention, kv)
        attender = PagedAttender(self._kernels, kv, plan, self._layers, self._dtype, self._head_dim)
        keep = 0 if batch.sample_rows is None else batch.sample_rows
        return forward(self._module, batch.token_ids[None], batch.attention.positions[None], keep, attender)
