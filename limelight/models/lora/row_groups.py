"""Which rows of a step belong to which adapter. Plain numbers; rows of the base model belong to none."""

from collections.abc import Mapping, Sequence

import msgspec

from limelight.step import Chunk


class RowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one adapter in a step, in order.

    Attributes:
        rows: among all rows of the step, None for all of them.
        sampled: the same among the rows that draw a token, by their place there.
    """

    adapter: int
    rows: tuple[int, ...] | None
    sampled: tuple[int, ...] | None


def group_rows(
    chunks: Sequence[Chunk], adapters: Sequence[int | None], sample_rows: Sequence[int]
) -> tuple[RowGroup, ...]:
    """One group per adapter of the step, none for a step of the base model alone.

    Args:
        adapters: of each chunk, None for the base model.
        sample_rows: rows that draw, rising.
    """
    if not any(adapter is not None for adapter in adapters):
        return ()
    rows: dict[int, list[int]] = {}
    owner: list[int | None] = []
    for chunk, adapter in zip(chunks, adapters, strict=True):
        if adapter is not None:
            rows.setdefault(adapter, []).extend(range(len(owner), len(owner) + chunk.num_tokens))
        owner += [adapter] * chunk.num_tokens
    sampled: Mapping[int, list[int]] = {adapter: [] for adapter in rows}
    for place, row in enumerate(sample_rows):
        adapter = owner[row]
        if adapter is not None:
            sampled[adapter].append(place)
    return tuple(
        RowGroup(
            adapter=adapter,
            rows=None if len(own) == len(owner) else tuple(own),
            sampled=None if len(sampled[adapter]) == len(sample_rows) else tuple(sampled[adapter]),
        )
        for adapter, own in rows.items()
    )
