"""What a forward pass takes, as tensors or as what stands for them in a recording."""

from typing import Any, Protocol

import msgspec

from limelight.kernels.interface import Rows
from limelight.models.layers import Adapters


class ForwardBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Input of one forward pass, or what stands for it in a recording.

    Attributes:
        token_ids: [tokens] int64.
        attention: where the rows sit, an `AttentionBatch` unless the pass is recorded.
        sample_rows: [sampled] int64, rows whose logits are wanted, in chunk order (with guesses, several of a chunk);
            None for all rows.
        adapters: of the step, with their rows among all.
        sampled_adapters: the same among the rows whose logits are wanted.
    """

    token_ids: Rows
    attention: Any
    sample_rows: Rows | None
    adapters: Adapters | None = None
    sampled_adapters: Adapters | None = None


class Model(Protocol):
    """A decoder, with its weights. `forward` is `body`, `normed` and `project` in one."""

    def forward(self, batch: ForwardBatch, kv: Any) -> Rows:
        """Write keys and values of all rows into `kv`; logits [sampled, vocab] float32."""
        ...

    def body(self, batch: ForwardBatch, kv: Any) -> tuple[Rows, Rows | None]:
        """Write keys and values of all rows into `kv`; what `normed` takes, [tokens, hidden] each."""
        ...

    def normed(self, hidden: Rows, residual: Rows | None, rows: Rows | None) -> Rows:
        """Hidden states [rows, hidden] behind the final norm, of `rows` of what `body` gave; None for all."""
        ...

    def project(self, normed: Rows, adapters: Adapters | None) -> Rows:
        """Their logits [rows, vocab] float32; `adapters` are those of these rows."""
        ...
