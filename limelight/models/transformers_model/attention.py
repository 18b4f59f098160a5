"""The attention that transformers' modules call in place of their own, under one name in transformers' registry.

The function keeps nothing: what it works on (the step's pages, or a probe) lies on a `Desk` that belongs to one model,
so that engines in one process do not meet. Many models hand keyword arguments down to attention, some do not; the desk
reaches all. Anything that the function is handed and does not know is refused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad

from limelight.errors import UnsupportedModel
from limelight.kernels.interface import AttentionSettings, Kernels

ATTENTION = "limelight_paged"
"""Our name in transformers' registry of attention functions. No mask function has it, so that no mask is made."""
DESK = "limelight_desk"
"""The attribute under which every module of a model finds the model's `Desk`."""
HARMLESS = frozenset(
    {
        "position_ids", "position_embeddings", "use_cache", "output_attentions", "output_hidden_states", "return_dict",
        "output_router_logits", "deterministic", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
        "num_items_in_batch",
    }
)  # fmt: skip
"""Keywords of modules that do not change what attention computes."""


class Attender(Protocol):
    """Who computes attention in one forward pass."""

    def attend(
        self, module: Module, queries: Tensor, keys: Tensor, values: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """Causal attention of one layer.

        Args:
            module: the attention module of the layer.
            queries: [1, heads, tokens, key_dim].
            keys, values: [1, kv_heads, tokens, key_dim] and [1, kv_heads, tokens, value_dim].

        Returns:
            [1, tokens, heads, value_dim].
        """
        ...


@dataclass(slots=True)
class Desk:
    """Where the modules of one model find who attends in the forward pass that is running; None between passes."""

    attender: Attender | None = None


def set_desk(model: Module) -> None:
    """Give all modules of `model` a desk of their own."""
    desk = Desk()
    for module in model.modules():
        setattr(module, DESK, desk)


@contextmanager
def attending(model: Module, attender: Attender) -> Iterator[None]:
    """Let `attender` compute attention in the forward passes inside."""
    desk: Desk = getattr(model, DESK)
    desk.attender = attender
    try:
        yield
    finally:
        desk.attender = None


def register() -> None:
    """Make `ATTENTION` known to transformers; once more changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)


def attention(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """What transformers calls an attention interface.

    Raises:
        UnsupportedModel: the module wants something that paged attention does not do.
    """
    desk: Desk | None = getattr(module, DESK, None)
    name = type(module).__name__
    if desk is None or desk.attender is None:
        raise UnsupportedModel(f"{name} is not part of a model that Limelight runs")
    if attention_mask is not None:
        raise UnsupportedModel(f"{name} makes an attention mask of its own")
    if is_causal is False or not getattr(module, "is_causal", True):
        raise UnsupportedModel(f"{name} is not causal: its tokens see later ones")
    if s_aux is None and getattr(module, "sinks", None) is not None:
        raise UnsupportedModel(f"{name} has attention sinks that it does not hand to attention")
    unknown = sorted(key for key, given in others.items() if given is not None and key not in HARMLESS)
    if unknown:
        raise UnsupportedModel(f"{name} gives attention {', '.join(unknown)}, which paged attention has no use for")
    settings = AttentionSettings(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        sliding_window=sliding_window,
        soft_cap=softcap,
        sinks=None if s_aux is None else s_aux.to(torch.float32),
    )
    return desk.attender.attend(module, query, key, value, settings), None


@dataclass(frozen=True, slots=True)
class PagedAttender:
    """Attention over the pages of one step.

    Attributes:
        kv, plan: of the step.
        layers: attention module -> its layer in the pool.
        dtype, head_dim: of the pool. Values narrower than keys are stored with zeros behind them.
    """

    kernels: Kernels
    kv: Any
    plan: Any
    layers: Mapping[Module, int]
    dtype: torch.dtype
    head_dim: int

    def attend(
        self, module: Module, queries: Tensor, keys: Tensor, values: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """See `Attender`."""
        layer, value_dim = self.layers[module], values.shape[-1]
        if value_dim < self.head_dim:
            values = pad(values, (0, self.head_dim - value_dim))
        self.kernels.write(self.kv, layer, self._rows(keys), self._rows(values), self.plan)
        attended: Tensor = self.kernels.attend(self.kv, layer, self._rows(queries), self.plan, settings)
        attended = attended.view(1, len(attended), queries.shape[1], self.head_dim)[..., :value_dim]
        return attended.to(queries.dtype).contiguous()

    def _rows(self, heads: Tensor) -> Tensor:
        """[1, heads, tokens, dim] -> [tokens, heads, dim] as the pool holds it."""
        return heads[0].transpose(0, 1).to(self.dtype)
