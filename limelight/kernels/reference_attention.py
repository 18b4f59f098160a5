"""Attention over pages in plain torch: gather the slots of each sequence, then scaled dot-product attention.

Decode rows are attended in groups of similar length, prefill chunks one by one. What only depends on the step (slots,
masks, grouping) is worked out once in the plan. A slot beyond a sequence's context is never even gathered: padding
repeats a slot that the sequence has written, because 0 * NaN would survive a mask.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from limelight.kernels.interface import AttentionBatch, AttentionSettings

PADDING_TOKENS = 512
"""Padding that a group of decode rows may always have: below this, one more group costs more than it saves."""
SCORES_AT_ONCE = 2**26
"""Scores in float32 that are written out at once, where soft caps or sinks ask for it: 256 MiB."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each, padded to the longest.

    Attributes:
        rows: [n] int64 rows of the step, or None for all of them in order.
        slots: [n * longest] int64 slots to gather.
        mask: [n, 1, 1, longest], 0 or minus infinity, or None if all are of the same length.
    """

    rows: Tensor | None
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive rows `first_row` to `end_row - 1` of one sequence.

    Attributes:
        slots: [keys] int64 slots to gather.
        mask: [rows, keys], 0 or minus infinity, or None: plain causal from position 0.
    """

    first_row: int
    end_row: int
    slots: Tensor
    mask: Tensor | None


@dataclass(slots=True)
class AttentionPlan:
    """Which rows attend to which slots, worked out when the first layer with a given window asks."""

    batch: AttentionBatch
    page_size: int
    dtype: torch.dtype
    _work: dict[int | None, tuple[DecodeGroup | PrefillChunk, ...]] = field(default_factory=dict)

    def work(self, window: int | None) -> tuple[DecodeGroup | PrefillChunk, ...]:
        """The pieces that together cover every row once, for layers with this sliding window."""
        pieces = self._work.get(window)
        if pieces is None:
            pieces = self._work[window] = tuple(self._split(window))
        return pieces

    def _split(self, window: int | None) -> list[DecodeGroup | PrefillChunk]:
        starts = self.batch.query_starts.tolist()
        contexts = self.batch.context_lens.tolist()
        decodes = [chunk for chunk in range(len(contexts)) if starts[chunk + 1] - starts[chunk] == 1]
        keys = {chunk: contexts[chunk] if window is None else min(contexts[chunk], window) for chunk in decodes}
        groups = _grouped(decodes, keys)
        covers_all = len(groups) == 1 and len(decodes) == len(contexts)
        pieces: list[DecodeGroup | PrefillChunk] = [
            self._decode_group(
                decodes if covers_all else group, None if covers_all else [starts[chunk] for chunk in group], keys
            )
            for group in groups
        ]
        pieces += [
            self._prefill_chunk(chunk, starts[chunk], starts[chunk + 1], contexts[chunk], window)
            for chunk in range(len(contexts))
            if starts[chunk + 1] - starts[chunk] > 1
        ]
        return pieces

    def _decode_group(self, chunks: list[int], rows: list[int] | None, keys: dict[int, int]) -> DecodeGroup:
        device = self.batch.slots.device
        index = torch.tensor(chunks, device=device)
        num_keys = torch.tensor([[keys[chunk]] for chunk in chunks], device=device)
        first = self.batch.context_lens.index_select(0, index).unsqueeze(1) - num_keys
        offsets = torch.arange(max(keys[chunk] for chunk in chunks), device=device)
        valid = offsets < num_keys
        positions = first + torch.where(valid, offsets, 0)
        pages = self.batch.page_table.index_select(0, index).gather(1, positions // self.page_size)
        slots = pages.long() * self.page_size + positions % self.page_size
        mask = None
        if not all(keys[chunk] == len(offsets) for chunk in chunks):
            mask = torch.zeros(valid.shape, dtype=self.dtype, device=device).masked_fill_(~valid, -torch.inf)
            mask = mask[:, None, None]
        return DecodeGroup(None if rows is None else torch.tensor(rows, device=device), slots.flatten(), mask)

    def _prefill_chunk(
        self, chunk: int, first_row: int, end_row: int, context: int, window: int | None
    ) -> PrefillChunk:
        device = self.batch.slots.device
        start = context - (end_row - first_row)
        first = 0 if window is None else max(0, start - window + 1)
        keys = torch.arange(first, context, device=device)
        slots = self.batch.page_table[chunk, keys // self.page_size].long() * self.page_size + keys % self.page_size
        if start == 0 and (window is None or window >= context):
            return PrefillChunk(first_row, end_row, slots, None)
        queries = torch.arange(start, context, device=device).unsqueeze(1)
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=device).masked_fill_(hidden, -torch.inf)
        return PrefillChunk(first_row, end_row, slots, mask)


def attend(layer_kv: Tensor, queries: Tensor, plan: AttentionPlan, settings: AttentionSettings) -> Tensor:
    """Causal attention.

    Args:
        layer_kv: [slots, 2, kv_heads, head_dim].
        queries: [tokens, heads, head_dim].

    Returns:
        [tokens, heads * head_dim].
    """
    tokens, num_heads, head_dim = queries.shape
    work = plan.work(settings.sliding_window)
    outputs = []
    for piece in work:
        gathered = layer_kv.index_select(0, piece.slots)
        if isinstance(piece, DecodeGroup):
            rows = queries if piece.rows is None else queries.index_select(0, piece.rows)
            gathered = gathered.view(len(rows), -1, *gathered.shape[1:])
            rows = rows.unsqueeze(2)
        else:
            rows = queries[piece.first_row : piece.end_row].transpose(0, 1).unsqueeze(0)
            gathered = gathered.unsqueeze(0)
        keys, values = gathered.permute(2, 0, 3, 1, 4).unbind()
        causal = piece.mask is None and isinstance(piece, PrefillChunk)
        outputs.append(_dot_product(rows, keys, values, piece.mask, settings, is_causal=causal))
    if len(work) == 1:
        return outputs[0].transpose(1, 2).reshape(tokens, num_heads * head_dim)

    result = queries.new_empty(tokens, num_heads * head_dim)
    for piece, output in zip(work, outputs, strict=True):
        flat = output.transpose(1, 2).reshape(-1, num_heads * head_dim)
        if isinstance(piece, PrefillChunk):
            result[piece.first_row : piece.end_row] = flat
        elif piece.rows is not None:
            result.index_copy_(0, piece.rows, flat)
    return result


def _dot_product(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, settings: AttentionSettings, *, is_causal: bool
) -> Tensor:
    """softmax(cap(q k * scale) + mask) v for [batch, heads, rows, head_dim]; kv heads are shared by groups of heads."""
    batch, num_heads, num_rows, _ = queries.shape
    num_kv_heads, num_keys = keys.shape[1:3]
    if settings.soft_cap is None and settings.sinks is None:
        return scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=is_causal,
            scale=settings.scale,
            enable_gqa=num_heads != num_kv_heads,
        )
    if is_causal:
        hidden = torch.ones(num_rows, num_keys, dtype=torch.bool, device=queries.device).triu_(1)
        mask = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device).masked_fill_(hidden, -torch.inf)
    # A long prompt's chunk goes in pieces: its scores would take far more memory than anything else here.
    size = max(1, SCORES_AT_ONCE // (batch * num_heads * num_keys))
    pieces = [
        _written_out(
            queries[:, :, first : first + size],
            keys,
            values,
            mask if mask is None or mask.shape[-2] == 1 else mask[..., first : first + size, :],
            settings,
        )
        for first in range(0, num_rows, size)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)


def _written_out(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, settings: AttentionSettings
) -> Tensor:
    """The same with what scaled_dot_product_attention cannot do; products and softmax are in float32."""
    batch, num_heads, num_rows, head_dim = queries.shape
    num_kv_heads, num_keys = keys.shape[1:3]
    # The heads that share a kv head are so many more rows of it.
    shared = queries.reshape(batch, num_kv_heads, -1, head_dim)
    scores = torch.matmul(shared.float(), keys.float().transpose(2, 3)).view(batch, num_heads, num_rows, num_keys)
    scores = scores.mul_(settings.scale)
    if settings.soft_cap is not None:
        scores = scores.div_(settings.soft_cap).tanh_().mul_(settings.soft_cap)
    if mask is not None:
        scores = scores.add_(mask)
    highest = scores.amax(-1, keepdim=True)
    if settings.sinks is not None:
        sinks = settings.sinks.view(-1, 1, 1)
        highest = torch.maximum(highest, sinks)
    weights = scores.sub_(highest).exp_()
    total = weights.sum(-1, keepdim=True)
    if settings.sinks is not None:
        total += torch.exp(sinks - highest)
    weights = weights.div_(total).to(values.dtype).view(batch, num_kv_heads, -1, num_keys)
    return torch.matmul(weights, values).view(batch, num_heads, num_rows, head_dim)


def _grouped(chunks: list[int], keys: dict[int, int]) -> list[list[int]]:
    """Split decode chunks into groups of similar length: padding stays within a quarter of a group, or is small."""
    groups: list[list[int]] = []
    longest = useful = padding = 0
    for chunk in sorted(chunks, key=lambda chunk: -keys[chunk]):
        padding += longest - keys[chunk]
        useful += keys[chunk]
        if not groups or padding > max(PADDING_TOKENS, useful // 4):
            groups.append([])
            longest, useful, padding = keys[chunk], keys[chunk], 0
        groups[-1].append(chunk)
    return groups
