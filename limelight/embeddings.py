"""Vectors of texts: what a model says about pooling, and how pooled hidden states become an embedding."""

import math
from array import array
from collections.abc import Sequence

import msgspec

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.generation import Pooling, Usage


class EmbeddingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model makes embeddings.

    Attributes:
        num_dimensions: of its hidden states.
        normalize: scale vectors to length 1.
        refusal: why it makes none; None: it does.
    """

    num_dimensions: int
    pooling: Pooling = Pooling.LAST
    normalize: bool = True
    refusal: str | None = None

    def check(self, dimensions: int | None) -> None:
        """Refuse what cannot be made.

        Raises:
            UnsupportedField: this model makes no embeddings.
            InvalidRequest: it has fewer dimensions.
        """
        if self.refusal is not None:
            raise UnsupportedField(f"this model makes no embeddings: {self.refusal}", param="model")
        if dimensions is not None and not 1 <= dimensions <= self.num_dimensions:
            raise InvalidRequest(
                f"dimensions is {dimensions}, must be from 1 to {self.num_dimensions}, which this model has",
                param="dimensions",
            )

    def vector(self, pooled: Sequence[float], dimensions: int | None) -> tuple[float, ...]:
        """The first `dimensions` numbers (Matryoshka representations: Kusupati et al. 2022), scaled again."""
        kept = tuple(pooled[:dimensions])
        length = math.hypot(*kept) if self.normalize else 1.0
        return tuple([value / length for value in kept]) if length else kept


class Embedding(msgspec.Struct, frozen=True):
    """The vector of one text."""

    vector: tuple[float, ...]
    usage: Usage


def pooled_states(parts: Sequence[bytes], pooling: Pooling, num_tokens: int) -> tuple[float, ...]:
    """One vector of what was read of a prompt's parts: float32 [hidden size] of each, as `Sampled.hidden` has it."""
    rows = [array("f", part) for part in parts]
    if pooling is Pooling.LAST:
        return tuple(rows[-1])
    return tuple([math.fsum(column) / num_tokens for column in zip(*rows, strict=True)])
