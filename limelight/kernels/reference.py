"""Plain torch on any device: the specification of every kernel, and what serves where nothing faster is there.

Keys and values of a layer lie in one tensor [slots, 2, kv_heads, head_dim], a page being `page_size` slots in a row:
a token's keys and values are written, and gathered, as one piece.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from limelight.kernels import reference_attention, reference_sampling
from limelight.kernels.interface import (
    DTYPE_BYTES,
    AttentionBatch,
    AttentionSettings,
    ExpertWeights,
    KVLayout,
    LinearSegment,
    LowRankRows,
    SampledTokens,
    SamplingBatch,
    StoredTensor,
)
from limelight.kernels.reference_attention import AttentionPlan
from limelight.kernels.torch_dtypes import TORCH_DTYPES, name_of

PACKING_ROWS = 8
"""Number of rows that oneDNN packs a matrix for: a typical decode step. Other numbers work, a little slower."""


GROUPED_ALIGNMENT = 16
"""Bytes; see `torch.nn.functional.grouped_mm`."""


@dataclass(frozen=True, slots=True)
class ReferenceKV:
    """The KV pool.

    Attributes:
        layers: per layer [slots, 2, kv_heads, head_dim]; slot = page * page_size + offset; keys first.
    """

    layout: KVLayout
    layers: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """A product of matrices that share their input.

    Attributes:
        weight: [out, in], or oneDNN's own layout of it if `packed`.
        bias: [out] or None.
    """

    weight: Tensor
    bias: Tensor | None
    packed: bool


@dataclass(frozen=True, slots=True)
class ReferenceExperts:
    """Experts of a layer: [experts, 2 * inner, in], the gate's rows first, and [experts, out, inner], with zeros behind
    rows that grouped products could not step over; biases [experts, 2 * inner] and [experts, out], or None.
    """

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    activation: str
    limit: float | None


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary tables of the rows of a step, [tokens, 1, 2, rotary_dim / 2]: rotated = x * cos + swapped(x) * sin."""

    cos: Tensor
    sin: Tensor


class ReferenceKernels:
    """See `Kernels`. Weights come as tensors in the dtype that is computed in."""

    page_sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    pages_per_run = 1
    stored_formats: frozenset[str] = frozenset()

    def __init__(self, device: str) -> None:
        self.device = device
        self._packing_works = device == "cpu" and _packing_works()

    def numbers(self, values: NDArray[np.float32]) -> Tensor:
        """A tensor on the device."""
        return torch.from_numpy(values).to(self.device)

    def page_bytes(self, layout: KVLayout) -> int:
        """What the layout says."""
        return layout.page_bytes

    def allocate_kv(self, layout: KVLayout) -> ReferenceKV:
        """The pool, uninitialised: memory is committed as pages are first written."""
        shape = (layout.num_pages * layout.page_size, 2, layout.num_kv_heads, layout.head_dim)
        dtype = TORCH_DTYPES[layout.dtype]
        layers = tuple(torch.empty(shape, dtype=dtype, device=self.device) for _ in range(layout.num_layers))
        return ReferenceKV(layout, layers)

    def packed_bytes(self, shape: tuple[int, ...], stored: str) -> int:
        """As much as the tensor, in whichever layout."""
        return math.prod(shape) * DTYPE_BYTES[stored]

    def embedding_bytes(self, shape: tuple[int, int], stored: str, *, is_head: bool) -> int:
        """Twice the table where products are packed: one is looked up in, the other multiplied with."""
        return self.packed_bytes(shape, stored) * (2 if is_head and self._packs(stored) else 1)

    def quantize(self, matrix: Tensor | NDArray[np.float32], format_name: str) -> StoredTensor:
        """Nothing is quantised.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"the reference kernels make no blocks of {format_name}")

    def pack_linear(self, segments: Sequence[LinearSegment]) -> ReferenceLinear:
        """One matrix of all segments; float32 on the CPU goes into oneDNN's layout, once instead of at every product.

        Raises:
            ValueError: the segments disagree on the input size.
        """
        input_sizes = sorted({segment.weight.shape[1] for segment in segments})
        if len(input_sizes) != 1:
            raise ValueError(f"segments of one projection have input sizes {input_sizes}; they must be equal")
        with torch.inference_mode():
            weights = [_plain(segment.weight) for segment in segments]
            weight = weights[0] if len(weights) == 1 else torch.cat(weights)
            packed = self._packs(name_of(weight.dtype))
            if packed:
                weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS)  # noqa: SLF001
            return ReferenceLinear(weight, _joined_bias(segments), packed)

    def linear(self, inputs: Tensor, packed: ReferenceLinear) -> Tensor:
        """`inputs` [tokens, in] times a packed product -> [tokens, sum of out]."""
        if not len(inputs):
            return inputs.new_empty(0, packed.weight.shape[0])
        if packed.packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
                inputs, packed.weight, packed.bias, "none", [], ""
            )
            return product
        return F.linear(inputs, packed.weight, packed.bias)

    def add_low_rank(self, outputs: Tensor, inputs: Tensor, additions: Sequence[LowRankRows]) -> None:
        """Per addition one product down for all its parts, and one up for each."""
        for addition in additions:
            rows = addition.rows
            chosen = inputs if rows is None else inputs.index_select(0, rows)
            inner = F.linear(chosen, addition.product.down)
            first_rank = 0
            for part in addition.product.parts:
                num_outputs, rank = part.up.shape
                added = F.linear(inner[:, first_rank : first_rank + rank], part.up)
                target = outputs[:, part.first_output : part.first_output + num_outputs]
                if rows is None:
                    target.add_(added)
                else:
                    target.index_add_(0, rows, added)
                first_rank += rank

    def pack_embedding(self, table: Tensor | StoredTensor, *, is_head: bool) -> tuple[Tensor, ReferenceLinear | None]:
        """The table itself, and the same as a product."""
        plain = _plain(table)
        return plain, self.pack_linear([LinearSegment(weight=plain)]) if is_head else None

    def embed(self, token_ids: Tensor, table: Tensor, scale: float) -> Tensor:
        """Rows of `table` [vocab, hidden] for `token_ids` [tokens] -> [tokens, hidden]."""
        rows = table.index_select(0, token_ids)
        return rows if scale == 1.0 else rows.mul_(torch.tensor(scale, dtype=rows.dtype))

    def select_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        """Rows number `rows` [sampled] of `values` [tokens, n] -> [sampled, n]."""
        return values.index_select(0, rows)

    def logits(self, values: Tensor, soft_cap: float | None) -> Tensor:
        """`values` [sampled, vocab] in float32, bounded by a cap."""
        exact = values.to(torch.float32)
        return exact if soft_cap is None else exact.div_(soft_cap).tanh_().mul_(soft_cap)

    def add_norm(
        self, hidden: Tensor, residual: Tensor | None, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """RMSNorm of `hidden + residual` -> (normed, the sum), both [tokens, hidden]."""
        total = hidden if residual is None else hidden + residual
        return _rms_norm(total, weight, epsilon), total

    def plan(self, batch: AttentionBatch, kv: ReferenceKV) -> AttentionPlan:
        """Which rows attend to which slots."""
        return AttentionPlan(batch, kv.layout.page_size, TORCH_DTYPES[kv.layout.dtype])

    def rotation(self, cos: Tensor, sin: Tensor, batch: AttentionBatch) -> Rotation:
        """Both halves of a head's pair rotate by the same angle; the second half's partner enters with a plus."""
        cos, sin = cos.index_select(0, batch.positions), sin.index_select(0, batch.positions)
        return Rotation(torch.stack((cos, cos), 1).unsqueeze(1), torch.stack((-sin, sin), 1).unsqueeze(1))

    def rotate_and_write(
        self,
        kv: ReferenceKV,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        plan: AttentionPlan,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        epsilon: float,
    ) -> Tensor:
        """QK-norm, rotary embedding in place, then keys and values as one piece into their slots."""
        tokens, width = qkv.shape
        head_dim, num_kv_heads = kv.layout.head_dim, kv.layout.num_kv_heads
        heads = qkv.view(tokens, width // head_dim, head_dim)
        queries, keys = heads[:, : -2 * num_kv_heads], heads[:, -2 * num_kv_heads : -num_kv_heads]
        if q_norm is not None:
            queries.copy_(_rms_norm(queries, q_norm, epsilon))
        if k_norm is not None:
            keys.copy_(_rms_norm(keys, k_norm, epsilon))
        _rotate(heads[:, :-num_kv_heads], rotation)
        kv.layers[layer].index_copy_(
            0, plan.batch.slots, heads[:, -2 * num_kv_heads :].view(tokens, 2, num_kv_heads, head_dim)
        )
        return queries

    def write(self, kv: ReferenceKV, layer: int, keys: Tensor, values: Tensor, plan: AttentionPlan) -> None:
        """Keys and values as one piece into their slots."""
        kv.layers[layer].index_copy_(0, plan.batch.slots, torch.stack((keys, values), 1))

    def attend(
        self, kv: ReferenceKV, layer: int, queries: Tensor, plan: AttentionPlan, settings: AttentionSettings
    ) -> Tensor:
        """Causal attention of `queries` over the pages of their sequences -> [tokens, heads * head_dim]."""
        return reference_attention.attend(kv.layers[layer], queries, plan, settings)

    def gate(self, gate_up: Tensor, activation: str = "silu", limit: float | None = None) -> Tensor:
        """activation(first half) * second half: [tokens, 2 * n] -> [tokens, n]."""
        gate, up = gate_up.chunk(2, dim=-1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return (gate * 1.702).sigmoid_().mul_(gate).mul_(up + 1)
        if activation == "silu":
            return F.silu(gate).mul_(up)
        return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none").mul_(up)

    def pack_experts(self, weights: ExpertWeights) -> ReferenceExperts:
        """Gate and up as one matrix; inputs of odd sizes are filled up, which grouped products cannot step over."""
        biases = [bias for bias in (weights.gate_bias, weights.up_bias) if bias is not None]
        return ReferenceExperts(
            gate_up=_aligned(_read_joined(weights.read_gate, weights.read_up)),
            down=_aligned(_plain(weights.read_down())),
            gate_up_bias=torch.cat(biases, 1) if biases else None,
            down_bias=weights.down_bias,
            activation=weights.activation,
            limit=weights.limit,
        )

    def route(self, scores: Tensor, num_chosen: int, *, chosen_first: bool, normalize: bool) -> tuple[Tensor, Tensor]:
        """In float32, whatever the dtype of `scores` [tokens, experts]."""
        scores = scores.float()
        if chosen_first:
            scores, chosen = scores.topk(num_chosen, dim=-1)
            return chosen, scores.softmax(-1)
        # The probabilities and not the scores are compared, as in transformers: they may be equal where scores are not.
        shares, chosen = scores.softmax(-1).topk(num_chosen, dim=-1)
        return chosen, shares / shares.sum(-1, keepdim=True) if normalize else shares

    def add_gated(self, outputs: Tensor, scores: Tensor, values: Tensor) -> Tensor:
        """`outputs` + sigmoid(`scores`) * `values`: [tokens, n], [tokens, 1], [tokens, n]."""
        return outputs + scores.sigmoid() * values

    def experts(self, inputs: Tensor, chosen: Tensor, shares: Tensor, packed: ReferenceExperts) -> Tensor:
        """Rows sorted by expert, two grouped products, and each row's results added up in the order of its choice."""
        tokens, num_chosen = chosen.shape
        expert_of_row, order = chosen.flatten().sort(stable=True)
        experts = torch.arange(packed.down.shape[0], device=chosen.device)
        ends = torch.searchsorted(expert_of_row, experts, right=True).to(torch.int32)
        rows = inputs.index_select(0, order // num_chosen)
        gate_up = _grouped_product(rows, packed.gate_up, packed.gate_up_bias, expert_of_row, ends)
        inner = self.gate(gate_up, packed.activation, packed.limit)
        sorted_outputs = _grouped_product(inner, packed.down, packed.down_bias, expert_of_row, ends)
        outputs = torch.empty_like(sorted_outputs).index_copy_(0, order, sorted_outputs)
        return torch.bmm(shares.to(outputs.dtype).unsqueeze(1), outputs.view(tokens, num_chosen, -1)).squeeze(1)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SampledTokens:
        """Draw a token per row of `logits` [sampled, vocab] float32."""
        return reference_sampling.sample(logits, batch)

    def _packs(self, stored: str) -> bool:
        """Whether products go into a layout of oneDNN's: only float32 on the CPU gains by it."""
        return self._packing_works and stored == "float32"


def _plain(weight: Tensor | StoredTensor) -> Tensor:
    assert isinstance(weight, Tensor), "no format is taken as it is stored"
    return weight


def _rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last dimension; a weight that is more exact than the values is multiplied with as it is."""
    return F.rms_norm(values.to(weight.dtype), weight.shape, weight, epsilon).to(values.dtype)


def _read_joined(
    read_gate: Callable[[], Tensor | StoredTensor], read_up: Callable[[], Tensor | StoredTensor]
) -> Tensor:
    """[experts, 2 * inner, in]; `up` is read when the gate is in its place and its own tensor gone."""
    gate = _plain(read_gate())
    num_experts, inner, inputs = gate.shape
    joined = gate.new_empty(num_experts, 2 * inner, inputs)
    joined[:, :inner] = gate
    del gate
    joined[:, inner:] = _plain(read_up())
    return joined


def _aligned(weight: Tensor) -> Tensor:
    """[experts, out, in] as grouped products ask: zeros behind each row if rows are no multiples of 16 bytes."""
    surplus = weight.shape[2] * weight.itemsize % GROUPED_ALIGNMENT
    if not surplus:
        return weight.contiguous()
    return F.pad(weight, (0, (GROUPED_ALIGNMENT - surplus) // weight.itemsize))


def _grouped_product(rows: Tensor, weight: Tensor, bias: Tensor | None, expert_of_row: Tensor, ends: Tensor) -> Tensor:
    """`rows` [n, in], sorted by expert, each times its expert's matrix; `ends` [experts] int32 is where theirs end."""
    if weight.shape[2] > rows.shape[1]:
        rows = F.pad(rows, (0, weight.shape[2] - rows.shape[1]))
    product = F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    return product if bias is None else product.add_(bias.index_select(0, expert_of_row))


def _rotate(heads: Tensor, rotation: Rotation) -> None:
    """Rotate the leading dimensions of `heads` [tokens, heads, head_dim] in place, computing in float32."""
    half = rotation.cos.shape[-1]
    pairs = heads[..., : 2 * half].view(*heads.shape[:-1], 2, half)
    exact = pairs.float()
    swapped = exact.flip(2)
    rotated = exact.mul_(rotation.cos).addcmul_(swapped, rotation.sin)
    if rotated is not pairs:
        pairs.copy_(rotated)


def _joined_bias(segments: Sequence[LinearSegment]) -> Tensor | None:
    """Biases in a row, zeros where a segment has none; None if no segment has one."""
    if all(segment.bias is None for segment in segments):
        return None
    return torch.cat(
        [
            _plain(segment.weight).new_zeros(segment.weight.shape[0]) if segment.bias is None else segment.bias
            for segment in segments
        ]
    )


def _packing_works() -> bool:
    """Try oneDNN's packed product once: it is absent from some builds of torch and refuses some processors."""
    weight, inputs = torch.eye(16), torch.ones(1, 16)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_ROWS)  # noqa: SLF001
        product = torch.ops.mkldnn._linear_pointwise(inputs, packed, None, "none", [], "")  # noqa: SLF001
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(torch.equal(product, inputs))
