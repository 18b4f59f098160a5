"""Any decoder that transformers can build, run over Limelight's pages: the same batches as models of our own layers.

transformers computes embedding, projections, norms, experts and head; attention and all that is kept of a sequence is
ours. A batch is one flat row of tokens with their positions.
"""

from typing import Any

import torch
from torch import Tensor

from limelight.errors import UnsupportedModel
from limelight.kernels.interface import Kernels
from limelight.models.forward_batch import ForwardBatch
from limelight.models.layers import Adapters, ProjectionShape
from limelight.models.transformers_model.attention import PagedAttender, attending
from limelight.models.transformers_model.probe import Attendance, forward


class TransformersModel:
    """Weights and forward pass. The KV pool is passed in.

    Attributes:
        adaptable: no projection: adapters change those of our own layers only.
        hidden_size: numbers of a hidden state behind the final norm.
        unreadable: why its rows cannot be read behind the layers; None: they can.
    """

    adaptable: tuple[ProjectionShape, ...] = ()

    def __init__(self, module: Any, attendance: Attendance, kernels: Kernels, dtype: torch.dtype) -> None:
        """Wrap a model that holds its weights.

        Args:
            module: transformers' decoder.
            dtype: of the KV pool.
        """
        self._module = module
        self.hidden_size: int = module.get_output_embeddings().weight.shape[1]
        self._kernels = kernels
        self._layers = {module.get_submodule(name): layer for layer, name in enumerate(attendance.layers)}
        self._head_dim = attendance.head_dim
        self._dtype = dtype
        self.unreadable = self._find_unreadable()

    def forward(self, batch: ForwardBatch, kv: Any) -> Tensor:
        """Write keys and values of all rows; logits [sampled, vocab] float32 of the rows that draw a token."""
        keep = 0 if batch.sample_rows is None else batch.sample_rows
        return forward(
            self._module, batch.token_ids[None], batch.attention.positions[None], keep, self._attender(batch, kv)
        )

    def body(self, batch: ForwardBatch, kv: Any) -> tuple[Tensor, None]:
        """All layers and the final norm; write keys and values."""
        with attending(self._module, self._attender(batch, kv)):
            output = self._module.get_decoder()(
                input_ids=batch.token_ids[None], position_ids=batch.attention.positions[None], use_cache=False
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden, None

    def normed(self, hidden: Tensor, residual: Tensor | None, rows: Tensor | None) -> Tensor:
        """Rows of what `body` gave, which are normed already."""
        assert residual is None, "the layers of transformers add up their results"
        return hidden if rows is None else hidden.index_select(0, rows)

    @torch.inference_mode()
    def project(self, normed: Tensor, adapters: Adapters | None) -> Tensor:
        """Logits by the module's own way from its layers to them, which may scale or cap: its layers are left out."""
        layers = self._module.get_decoder()
        layers.forward = lambda *_args, **_options: _Rows((normed[None],))
        try:
            output = self._module(input_ids=normed.new_zeros((1, len(normed)), dtype=torch.int64), use_cache=False)
        finally:
            del layers.forward
        logits: Tensor = output.logits[0]
        return logits.to(torch.float32)

    def _find_unreadable(self) -> str | None:
        """See `unreadable`; found out by a row of zeros."""
        table = self._module.get_output_embeddings().weight
        try:
            self.project(table.new_zeros((1, self.hidden_size)), None)
        except (AttributeError, TypeError, ValueError, RuntimeError, UnsupportedModel):
            return f"{type(self._module).__name__} of transformers does not keep its layers apart from its head"
        return None

    def _attender(self, batch: ForwardBatch, kv: Any) -> PagedAttender:
        plan = self._kernels.plan(batch.attention, kv)
        return PagedAttender(self._kernels, kv, plan, self._layers, self._dtype, self._head_dim)


class _Rows(tuple[Tensor, ...]):
    """What layers give, in either way in which it is asked for: by place or by name; None where it is not there."""

    __slots__ = ()

    @property
    def last_hidden_state(self) -> Tensor:
        """[1, rows, hidden]."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None
