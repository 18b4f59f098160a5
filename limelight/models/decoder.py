"""A whole decoder: embedding, the layers of a family in a row, final norm, head. Keeps nothing of a sequence."""

import math
from collections.abc import Callable
from typing import Any

from limelight.kernels.interface import DTYPE_BYTES, Kernels, Numbers, Rows
from limelight.models.families.registry import family_of
from limelight.models.forward_batch import ForwardBatch
from limelight.models.layers import Adapters, Block, Layer, LayerBuilder, Parameters, Projection, StepState, norm_weight
from limelight.models.rope import rope_tables
from limelight.models.spec import ModelSpec, RopeSettings

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head"


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter that the checkpoint must have."""
    outer: dict[str, tuple[int, ...]] = {
        EMBEDDING: (spec.vocab_size, spec.hidden_size),
        FINAL_NORM: (spec.hidden_size,),
    }
    if not spec.tie_word_embeddings:
        outer[f"{HEAD}.weight"] = (spec.vocab_size, spec.hidden_size)
    return outer | family_of(spec.architecture).parameter_shapes(spec)


def weights_bytes(
    spec: ModelSpec,
    kernels: Kernels,
    dtype: str,
    kept_as: Callable[[str], str] | None = None,
) -> int:
    """Bytes of all parameters in memory.

    Args:
        kept_as: name of a matrix -> the dtype or format in which the kernels get it, if that is not `dtype`.
    """
    num_bytes = 0
    for name, shape in parameter_shapes(spec).items():
        if len(shape) == 1 or not name.endswith(".weight"):
            num_bytes += math.prod(shape) * DTYPE_BYTES[dtype]
            continue
        kept, matrix = dtype if kept_as is None else kept_as(name), (shape[-2], shape[-1])
        if name == EMBEDDING:
            num_bytes += kernels.embedding_bytes(matrix, kept, is_head=spec.tie_word_embeddings)
        else:
            num_bytes += math.prod(shape[:-2]) * kernels.packed_bytes(matrix, kept)
    return num_bytes


class Decoder:
    """Weights and forward pass. The KV pool is passed in.

    Attributes:
        adaptable: the projections that adapters can change; a head that is the embedding's table is none of them.
        hidden_size: numbers of a hidden state.
        unreadable: None: its rows can be read behind the layers.
    """

    unreadable: str | None = None

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Parameters,
        kernels: Kernels,
        num_positions: int,
        on_progress: Callable[[float], None],
    ) -> None:
        """Read and pack every parameter of `parameter_shapes(spec)`.

        Args:
            num_positions: the longest context that is served.
            on_progress: called with the fraction of layers that are ready.
        """
        self._kernels = kernels
        self._spec = spec
        self.hidden_size = spec.hidden_size
        self._rope = self._tables(spec.rope, num_positions)
        self._local_rope = None if spec.local_rope is None else self._tables(spec.local_rope, num_positions)
        build_layer = family_of(spec.architecture).build_layer
        self._layers: list[Layer] = []
        projections: list[Projection] = []
        for index in range(spec.num_layers):
            self._layers.append(build_layer(LayerBuilder(spec, index, parameters, kernels, projections)))
            on_progress((index + 1) / (spec.num_layers + 1))
        self._norm = norm_weight(parameters, FINAL_NORM, spec)
        table = parameters.matrix(EMBEDDING)
        self._embedding, tied_head = kernels.pack_embedding(table, is_head=spec.tie_word_embeddings)
        self._head: Block
        if spec.tie_word_embeddings:
            self._head = lambda normed, _: kernels.linear(normed, tied_head)
        else:
            self._head = head = Projection(kernels, parameters, [HEAD], biases=False)
            projections.append(head)
        self.adaptable = tuple(projection.shape for projection in projections)
        on_progress(1.0)

    def forward(self, batch: ForwardBatch, kv: Any) -> Rows:
        """Write keys and values of all rows; logits [sampled, vocab] float32 of the rows that draw a token.

        Computes or records, as the kernels do.
        """
        return self.head(*self.body(batch, kv), batch)

    def body(self, batch: ForwardBatch, kv: Any) -> tuple[Rows, Rows | None]:
        """All layers; write keys and values. The sum of the results [tokens, hidden] is what `head` takes."""
        kernels = self._kernels
        rotation = kernels.rotation(*self._rope, batch.attention)
        state = StepState(
            kv=kv,
            plan=kernels.plan(batch.attention, kv),
            rotation=rotation,
            local_rotation=rotation
            if self._local_rope is None
            else kernels.rotation(*self._local_rope, batch.attention),
            adapters=batch.adapters,
        )
        residual: Rows | None = None
        hidden = kernels.embed(batch.token_ids, self._embedding, self._spec.embedding_scale)
        for layer in self._layers:
            hidden, residual = layer(hidden, residual, state)
        return hidden, residual

    def head(self, hidden: Rows, residual: Rows | None, batch: ForwardBatch) -> Rows:
        """Logits [sampled, vocab] float32 of `batch.sample_rows` of what `body` gave. Reads nothing else of the batch
        but the adapters of these rows.
        """
        return self.project(self.normed(hidden, residual, batch.sample_rows), batch.sampled_adapters)

    def normed(self, hidden: Rows, residual: Rows | None, rows: Rows | None) -> Rows:
        """Hidden states [rows, hidden] behind the final norm, of `rows` of what `body` gave; None for all."""
        kernels = self._kernels
        if rows is not None:
            hidden = kernels.select_rows(hidden, rows)
            residual = None if residual is None else kernels.select_rows(residual, rows)
        return kernels.add_norm(hidden, residual, self._norm, self._spec.rms_norm_epsilon)[0]

    def project(self, normed: Rows, adapters: Adapters | None) -> Rows:
        """Their logits [rows, vocab] float32; `adapters` are those of these rows."""
        state = StepState(kv=None, plan=None, rotation=None, local_rotation=None, adapters=adapters)
        return self._kernels.logits(self._head(normed, state), self._spec.logits_soft_cap)

    def _tables(self, rope: RopeSettings, num_positions: int) -> tuple[Numbers, Numbers]:
        cos, sin = rope_tables(rope, num_positions, self._spec.max_position_embeddings)
        return self._kernels.numbers(cos), self._kernels.numbers(sin)
