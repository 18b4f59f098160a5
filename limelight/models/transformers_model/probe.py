"""Finds out how a model from transformers attends, and that nothing else in it lets one token see another.

`probe` runs the model once without weights (torch's meta device): every attention layer must come to us exactly once,
all of one shape. `check_rows` runs it with weights: without attention, a row must depend on its own token and position
alone, so that rows of many sequences can share a forward pass. A model that fails is refused, never run wrongly.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from limelight.errors import UnsupportedModel
from limelight.kernels.interface import AttentionSettings
from limelight.models.spec import MAX_HEAD_DIM
from limelight.models.transformers_model.attention import Attender, attending, register, set_desk
from limelight.models.transformers_model.config import (
    LENGTH_DEPENDENT_ROPE,
    TransformersConfig,
    understood,
    windows_of_layers,
)
from limelight.quoting import quoted

PROBE_ROWS = 5
CHECK_ROWS = 12
MAX_DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""How far the same row may come out elsewhere in a batch, as a share of its size. Rows that see each other differ by
about their own size."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """How a model attends.

    Attributes:
        layers: names of the attention modules, in the order in which they are called.
        vocab_size: number of logits.
        num_values: values in all parameters and buffers, a tied table counted once.
    """

    layers: tuple[str, ...]
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_values: int


@dataclass(slots=True)
class _Call:
    module: Module
    queries: torch.Size
    keys: torch.Size
    values: torch.Size
    window: int | None


@dataclass(slots=True)
class _Probing:
    """Notes who asks for attention, and answers with zeros."""

    calls: list[_Call] = field(default_factory=list)

    def attend(
        self, module: Module, queries: Tensor, keys: Tensor, values: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """See `Attender`."""
        self.calls.append(_Call(module, queries.shape, keys.shape, values.shape, settings.sliding_window))
        batch, heads, tokens, _ = queries.shape
        return queries.new_zeros(batch, tokens, heads, values.shape[-1])


@dataclass(slots=True)
class _OwnValue:
    """Each row gets its own value, by a factor that depends on its own query and key, positions included."""

    def attend(
        self, module: Module, queries: Tensor, keys: Tensor, values: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """See `Attender`."""
        groups = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        return (values * (1 + _projected(queries) + _projected(keys))).transpose(1, 2).contiguous()


def probe(described: TransformersConfig) -> Attendance:
    """How the model attends, found out without its weights.

    Raises:
        UnsupportedModel: not as paged attention serves it.
    """
    source = described.fields.source
    register()
    config = _fit_for_meta(described.config)
    with understood(source, "build the model"), torch.device("meta"):
        model = described.model_class(config).eval()
    set_desk(model)
    probing = _Probing()
    rows = torch.zeros(1, PROBE_ROWS, dtype=torch.int64, device="meta")
    with understood(source, "run the model"), torch.inference_mode():
        logits = forward(model, rows, rows, rows[0, :2], probing)
    names = {module: name for name, module in model.named_modules()}
    calls = probing.calls
    reason = _fault(calls, config, names)
    if reason is not None:
        raise UnsupportedModel(f"{source}: {quoted(config.model_type)} does not run here: {reason}")
    state = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return Attendance(
        layers=tuple(names[call.module] for call in calls),
        num_kv_heads=calls[0].keys[1],
        head_dim=calls[0].keys[3],
        vocab_size=logits.shape[-1],
        num_values=sum(tensor.numel() for tensor in state.values()),
    )


def check_rows(model: Any, described: TransformersConfig, vocab_size: int, num_positions: int) -> None:
    """Run the model over a few rows, over the same in another order, and with positions of its own counting.

    Args:
        model: with its weights.
        num_positions: the longest context that is served.

    Raises:
        UnsupportedModel: a row came out differently, the positions are too many for the model, or it does not count
            them from 0.
    """
    device, dtype = model.device, model.dtype
    tokens = torch.arange(CHECK_ROWS, device=device) * 7919 % vocab_size
    positions = torch.arange(CHECK_ROWS, device=device) * (num_positions - 1) // (CHECK_ROWS - 1)
    order = torch.arange(CHECK_ROWS, device=device) * 5 % CHECK_ROWS
    source = described.fields.source
    with understood(source, "run the model"), torch.inference_mode():
        logits = forward(model, tokens[None], positions[None], 0, _OwnValue())
        moved = forward(model, tokens[None, order], positions[None, order], 0, _OwnValue())
        counted = torch.arange(min(CHECK_ROWS, num_positions), device=device)
        told = forward(model, tokens[None, counted], counted[None], 0, _OwnValue())
        untold = forward(model, tokens[None, counted], None, 0, _OwnValue())
    reason = None
    if not bool(logits.isfinite().all()):
        reason = f"its logits are not all finite in {str(dtype).removeprefix('torch.')}; try another dtype"
    elif _differ(moved, logits.index_select(0, order), dtype):
        reason = (
            "its tokens influence each other outside of attention (convolutions, recurrence), or it takes positions "
            "from the order in the batch"
        )
    elif _differ(told, untold, dtype):
        reason = "it does not count positions from 0"
    if reason is not None:
        raise UnsupportedModel(f"{source}: {quoted(described.config.model_type)} does not run here: {reason}")


def _differ(rows: Tensor, others: Tensor, dtype: torch.dtype) -> bool:
    """Whether most rows [rows, vocab] differ by more than rounding; another choice of experts changes single rows."""
    difference = (rows - others).norm(dim=-1) / others.norm(dim=-1).clamp_min(1e-9)
    return not float(difference.median()) <= MAX_DIFFERENCE[dtype]


def forward(model: Any, tokens: Tensor, positions: Tensor | None, keep: Tensor | int, attender: Attender) -> Tensor:
    """One forward pass of a model from transformers over a flat batch.

    Args:
        model: with a desk.
        tokens, positions: [1, rows] int64; without positions the model counts for itself.
        keep: rows whose logits are wanted; 0 for all.

    Returns:
        [kept, vocab] float32.
    """
    with attending(model, attender):
        output = model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=keep)
    logits: Tensor = output.logits[0]
    if isinstance(keep, Tensor) and len(logits) != len(keep):  # a model that does not know the keyword
        logits = logits.index_select(0, keep)
    return logits.to(torch.float32)


def _fault(calls: list[_Call], config: Any, names: dict[Module, str]) -> str | None:
    """Why these calls of attention cannot be served, or None."""
    if not calls:
        return "its attention does not go through transformers' attention interface"
    modules = [call.module for call in calls]
    if len(set(modules)) != len(modules):
        return "a layer attends more than once in a forward pass"
    if any(module not in names for module in modules):
        return "attention is called by something that is no part of the model"
    for call in calls:
        if call.queries[0] != 1 or call.queries[2] != PROBE_ROWS or call.keys[2] != PROBE_ROWS:
            return "its layers do not attend from each token to each"
    return _shape_fault(calls) or _window_fault(calls, config)


def _shape_fault(calls: list[_Call]) -> str | None:
    shapes = sorted({(call.keys[1], call.keys[3]) for call in calls})
    if len(shapes) != 1:
        described = ", ".join(f"{heads} of {dim}" for heads, dim in shapes)
        return f"its layers have different key heads ({described}); all layers share one layout of pages"
    (num_kv_heads, head_dim), heads = shapes[0], {call.queries[1] for call in calls}
    if any(call.queries[3] != head_dim or call.values[1] != num_kv_heads for call in calls):
        return "queries, keys and values of a layer differ in shape"
    if any(call.values[3] > head_dim for call in calls):
        return "its values are wider than its keys"
    if any(count % num_kv_heads for count in heads) or not 1 <= head_dim <= MAX_HEAD_DIM:
        return f"its heads ({sorted(heads)} of {head_dim}, {num_kv_heads} for keys) do not fit the pages"
    return None


def _window_fault(calls: list[_Call], config: Any) -> str | None:
    seen, stated = [call.window for call in calls], windows_of_layers(config, len(calls))
    reach = config.max_position_embeddings
    if [_below(window, reach) for window in seen] != [_below(window, reach) for window in stated]:
        return (
            f"its attention is told the sliding windows {_short(seen)}, while its configuration says {_short(stated)}"
        )
    return None


def _below(window: int | None, reach: int) -> int | None:
    return None if window is None or window >= reach else window


def _short(windows: list[int | None]) -> str:
    return ", ".join("none" if window is None else str(window) for window in dict.fromkeys(windows))


def _projected(heads: Tensor) -> Tensor:
    """[1, heads, tokens, dim] -> [1, heads, tokens, 1]: a bounded number that changes when a head is rotated."""
    signs = torch.arange(heads.shape[-1], device=heads.device).mul_(2654435761).remainder_(7).lt_(3)
    signs = signs.to(heads.dtype) * 2 - 1
    length = heads.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return torch.tanh((heads * signs).sum(-1, keepdim=True) / length)


def _fit_for_meta(config: Any) -> Any:
    """A copy without what looks at values, of which the meta device has none, or has no kernels there.

    Rotary embeddings that depend on the longest position become plain ones, and experts a batched product.
    """
    config = copy.deepcopy(config)
    config._experts_implementation = "batched_mm"  # noqa: SLF001
    stated = getattr(config, "rope_parameters", None) or {}
    for group in [stated, *(group for group in stated.values() if isinstance(group, dict))]:
        if group.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            group["rope_type"] = "default"
    return config
