"""The kernels that a forward pass is made of, at the granularity that hardware wants fused.

A `Kernels` object is made once for a device (`select.py`) and handed to the models; it knows neither models nor actors.
`reference.py` is the specification of every method: another implementation agrees with it within stated bounds.

A forward pass touches what the methods give back through other methods alone. So kernels may compute at once, on
tensors (`reference.py`), or *record*: then `Rows` stand for values that exist when the recorded pass is replayed, and a
pass is run once to be recorded (`cpu/`).

Shapes: `tokens` is the number of rows of the step, `sampled` the number of rows that draw a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Rows = Any
"""Values of the rows of a step, [tokens or sampled, ...]: a tensor, or a value of a recording."""

Numbers = Any
"""Parameters that are no matrices to multiply with: a tensor, or what `Kernels.numbers` gives."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Dtypes that are computed in and kept, by the names that torch and the settings have for them."""

KV_DTYPE_BYTES = {**DTYPE_BYTES, "float8_e4m3fn": 1}
"""Dtypes of keys and values. Those in 8 bits, which have a scale, are kept by Triton's kernels alone."""


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor as it is stored, for kernels that multiply with quantised blocks directly.

    Attributes:
        format: name of the number format ("Q4_1"; layouts in `models/gguf/blocks.py`).
        shape: of the values, outermost first.
        rows: [shape[0], bytes of each], shared with the file where rows need no reordering; not to be written.
            A vector in a block format is one row.
    """

    format: str
    shape: tuple[int, ...]
    rows: NDArray[np.uint8]


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of the KV pool; `dtype` is one of `KV_DTYPE_BYTES`."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values."""
        return 2 * self.num_layers * self.page_size * self.num_kv_heads * self.head_dim * KV_DTYPE_BYTES[self.dtype]


class AttentionBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows of a step sit. Chunks lie one after the other; a decode row is a chunk of one.

    Attributes:
        page_table: [chunks, max_pages] int32, the pages of each chunk's sequence in order; unused entries are 0.
        query_starts: [chunks + 1] int32, row at which each chunk begins.
        context_lens: [chunks] int32, tokens of the sequence including this chunk.
        positions: [tokens] int64, position of each row in its sequence.
        slots: [tokens] int64, `page * page_size + offset` where the row's key and value go.
    """

    page_table: Tensor
    query_starts: Tensor
    context_lens: Tensor
    positions: Tensor
    slots: Tensor


class AttentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What attention in one layer does beside softmax(q k) v.

    Attributes:
        sliding_window: tokens each query sees, itself included, or None for all.
        soft_cap: scaled products x become cap * tanh(x / cap), or None.
        sinks: [heads] float32, a logit of each head that takes part in the softmax and has no value, or None.
    """

    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
    sinks: Numbers | None = None


class ExpertWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Gated MLPs of which each row takes a few.

    Attributes:
        read_gate, read_up, read_down: read the matrices [experts, inner, in], the same, and [experts, out, inner]. Each
            is called once, when what it reads is packed, so that a layer is never in memory twice.
        gate_bias, up_bias, down_bias: [experts, inner], the same, and [experts, out], or all None.
        activation, limit: as in `Kernels.gate`.
    """

    read_gate: Callable[[], Tensor | StoredTensor]
    read_up: Callable[[], Tensor | StoredTensor]
    read_down: Callable[[], Tensor | StoredTensor]
    gate_bias: Numbers | None = None
    up_bias: Numbers | None = None
    down_bias: Numbers | None = None
    activation: str = "silu"
    limit: float | None = None


class LinearSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One stored matrix of a fused projection.

    Attributes:
        weight: [out, in], any float dtype, or as it is stored, in one of the formats that the kernels name.
        bias: [out] or None.
    """

    weight: Tensor | StoredTensor
    bias: Numbers | None = None


class LowRankPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one adapted matrix of a fused projection adds to its outputs.

    Attributes:
        first_output: column at which the matrix's outputs begin.
        up: [outputs, rank].
    """

    first_output: int
    up: Tensor


class LowRank(msgspec.Struct, frozen=True, kw_only=True):
    """A low-rank addition to a fused projection (LoRA, Hu et al. 2021, arXiv 2106.09685): up (down x), per part.

    Attributes:
        down: [sum of the parts' ranks, in], in the order of `parts`.
        parts: of the matrices that are adapted.
    """

    down: Tensor
    parts: tuple[LowRankPart, ...]


class LowRankRows(msgspec.Struct, frozen=True, kw_only=True):
    """A low-rank addition, and the rows that get it: [rows] int64 without repetition, or None for all."""

    rows: Tensor | None
    product: LowRank


class SamplingBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling settings of the rows that draw a token, gathered from the seats.

    Attributes:
        temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: [sampled] float32;
            temperature 0 is greedy.
        top_k: [sampled] int64, 0 for off.
        seeds, positions: [sampled] int64; the noise of a row depends on these two alone.
        bias_rows, bias_token_ids, bias_values: [entries] int64, int64, float32: additions to the logits of single
            tokens, adding up where several name one token (minus infinity blocks it).
        penalty_rows: [penalised] int64, the rows that the next two describe.
        prompt_mask, output_counts: [penalised, vocab], bool and int32.
        num_logprobs: the largest number of best tokens any row wants, or None if no row wants log-probabilities.
        allowed: [sampled, vocab] bool, tokens that a row may draw, or None for all.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    seeds: Tensor
    positions: Tensor
    bias_rows: Tensor
    bias_token_ids: Tensor
    bias_values: Tensor
    penalty_rows: Tensor
    prompt_mask: Tensor | None
    output_counts: Tensor | None
    num_logprobs: int | None
    allowed: Tensor | None = None


class SampledTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Drawn tokens, on the device.

    Attributes:
        token_ids: [sampled] int64.
        logprobs: [sampled] float32 of the drawn token under the raw logits, or None.
        top_token_ids, top_logprobs: [sampled, num_logprobs] best first, or None.
        best_scores: [sampled] float32, the largest logit after penalties, bias and masks, of a batch with masks; minus
            infinity if the row has no token to draw.
    """

    token_ids: Tensor
    logprobs: Tensor | None
    top_token_ids: Tensor | None
    top_logprobs: Tensor | None
    best_scores: Tensor | None = None


class Kernels(Protocol):
    """Functions on tensors for one device.

    Attributes:
        device: as torch names it ("cpu").
    """

    device: str
    page_sizes: tuple[int, ...]
    pages_per_run: int
    """A pool takes the memory of a multiple of so many pages."""
    stored_formats: frozenset[str]
    """Formats of `StoredTensor` that `pack_linear` and `pack_embedding` take as they are."""

    def numbers(self, values: NDArray[np.float32]) -> Numbers:
        """Parameters in the form in which the other methods take them."""
        ...

    def page_bytes(self, layout: KVLayout) -> int:
        """Memory that a page of the pool takes over all layers: `layout.page_bytes`, or more."""
        ...

    def allocate_kv(self, layout: KVLayout) -> Any:
        """The KV pool in this implementation's own layout; opaque, indexed by layer in the calls below."""
        ...

    def packed_bytes(self, shape: tuple[int, int], stored: str) -> int:
        """Memory that a matrix [out, in] takes once `pack_linear` has it.

        Args:
            stored: the dtype of its tensor (`DTYPE_BYTES`), or the format of its `StoredTensor`.
        """
        ...

    def quantize(self, matrix: Tensor | NDArray[np.float32], format_name: str) -> StoredTensor:
        """A matrix [..., out, in] of any float dtype in blocks of a format that `stored_formats` names.

        Raises:
            ValueError: the kernels make no such blocks, or it holds what these cannot.
        """
        ...

    def pack_linear(self, segments: Sequence[LinearSegment]) -> Any:
        """Pack matrices that share their input into one opaque product, outputs concatenated in order.

        Raises:
            ValueError: the segments disagree on the input size.
        """
        ...

    def linear(self, inputs: Rows, packed: Any) -> Rows:
        """`inputs` [tokens, in] times a packed product -> [tokens, sum of out]."""
        ...

    def add_low_rank(self, outputs: Rows, inputs: Rows, additions: Sequence[LowRankRows]) -> None:
        """Add up (down x) to `outputs` [tokens, out], in place, for some rows x of `inputs` [tokens, in]."""
        ...

    def pack_embedding(self, table: Tensor | StoredTensor, *, is_head: bool) -> tuple[Any, Any | None]:
        """Pack the table [vocab, hidden] for `embed`, and where it is the head too, the same for `linear`.

        Returns:
            (for `embed`, for `linear` or None): one and the same memory where the kernels can.
        """
        ...

    def embedding_bytes(self, shape: tuple[int, int], stored: str, *, is_head: bool) -> int:
        """Memory that a table [vocab, hidden] takes once `pack_embedding` has it; `stored` as in `packed_bytes`."""
        ...

    def embed(self, token_ids: Rows, table: Any, scale: float) -> Rows:
        """Rows of a packed table for `token_ids` [tokens] -> [tokens, hidden], multiplied with `scale`, which is
        rounded to the dtype of the values first, as the models were trained.
        """
        ...

    def select_rows(self, values: Rows, rows: Rows) -> Rows:
        """Rows number `rows` [sampled] of `values` [tokens, n] -> [sampled, n]."""
        ...

    def logits(self, values: Rows, soft_cap: float | None) -> Rows:
        """`values` [sampled, vocab] in float32, x becoming cap * tanh(x / cap) with a cap. May overwrite `values`."""
        ...

    def add_norm(self, hidden: Rows, residual: Rows | None, weight: Numbers, epsilon: float) -> tuple[Rows, Rows]:
        """RMSNorm of `hidden + residual` -> (normed, the sum), both [tokens, hidden] (Zhang & Sennrich 2019).

        The sum may lie where `residual` was, which is not to be read any more.

        Args:
            weight: [hidden], in the dtype of `hidden`, or in float32: then it is multiplied with before the result is
                rounded.
        """
        ...

    def plan(self, batch: Any, kv: Any) -> Any:
        """Work split of attention over `kv` for this step, shared by all layers.

        `batch` is an `AttentionBatch`, or what stands for it in a recording.
        """
        ...

    def rotation(self, cos: Numbers, sin: Numbers, batch: Any) -> Any:
        """What rotates the rows of this step, shared by all layers that use these tables.

        Args:
            cos, sin: [max_positions, rotary_dim / 2] float32 tables, read at `batch.positions`.
        """
        ...

    def rotate_and_write(
        self,
        kv: Any,
        layer: int,
        qkv: Rows,
        rotation: Any,
        plan: Any,
        q_norm: Numbers | None,
        k_norm: Numbers | None,
        epsilon: float,
    ) -> Rows:
        """Optional QK-norm, rotary embedding (half-split pairs), and writing keys and values to their slots.

        Args:
            qkv: [tokens, (heads + 2 * kv_heads) * head_dim], query heads first. May be overwritten.
            q_norm, k_norm: [head_dim] weights of an RMSNorm over each head as in `add_norm`, or None.

        Returns:
            queries [tokens, heads, head_dim].
        """
        ...

    def write(self, kv: Any, layer: int, keys: Rows, values: Rows, plan: Any) -> None:
        """Write keys and values, each [tokens, kv_heads, head_dim] and complete as they are, to their slots."""
        ...

    def attend(self, kv: Any, layer: int, queries: Rows, plan: Any, settings: AttentionSettings) -> Rows:
        """Causal attention of `queries` over the pages of their sequences -> [tokens, heads * head_dim].

        Slots beyond a sequence's context may hold anything, NaN included, and never influence a result.
        """
        ...

    def gate(self, gate_up: Rows, activation: str = "silu", limit: float | None = None) -> Rows:
        """activation(first half) * second half: [tokens, 2 * n] -> [tokens, n].

        Args:
            activation: "silu", "gelu_tanh" or "gelu".
            limit: with "silu" only, gpt-oss's gate: g = min(first, limit), u = second within +-limit,
                g * sigmoid(1.702 g) * (u + 1).
        """
        ...

    def pack_experts(self, weights: ExpertWeights) -> Any:
        """Pack a layer's experts; opaque, to be multiplied with by `experts`."""
        ...

    def route(self, scores: Rows, num_chosen: int, *, chosen_first: bool, normalize: bool) -> tuple[Rows, Rows]:
        """The experts that each row takes, and its shares of them, the largest first.

        Args:
            scores: [tokens, experts].
            chosen_first: the softmax is over the chosen scores, not over all.
            normalize: the shares of a row are divided by their sum (they add up to one anyway if `chosen_first`).

        Returns:
            (chosen [tokens, num_chosen] integers, shares [tokens, num_chosen] float32). Of equal ones the first comes
            first.
        """
        ...

    def add_gated(self, outputs: Rows, scores: Rows, values: Rows) -> Rows:
        """`outputs` + sigmoid(`scores`) * `values`: [tokens, n], [tokens, 1], [tokens, n]. May overwrite `outputs`."""
        ...

    def experts(self, inputs: Rows, chosen: Rows, shares: Rows, packed: Any) -> Rows:
        """Sum over each row's experts of share * down(gate(gate_up row)), as one grouped product per matrix.

        Args:
            inputs: [tokens, in].
            chosen: [tokens, k] int64, experts of each row.
            shares: [tokens, k] float32.

        Returns:
            [tokens, out].
        """
        ...

    def sample(self, logits: Rows, batch: Any) -> Any:
        """Draw a token per row of `logits` [sampled, vocab] float32, which may be overwritten. `batch` is a
        `SamplingBatch` and the result `SampledTokens`, or what stands for them in a recording.

        Log-probabilities are those of the logits as given. Then, in this order: penalties, bias, masks, and for rows
        with a temperature: temperature, top_k, top_p (over what top_k left), min_p, draw. Tokens equal to the last one
        that a cut keeps are kept too. A row whose tokens are all blocked draws token 0.
        """
        ...
