"""Sizes of the tiles of attention, chosen by what the compiler makes of them (`docs/gpu_kernels.md`)."""

from __future__ import annotations

import msgspec
from triton import next_power_of_2

MIN_ROWS = 16
"""Fewest rows of a matrix product."""


class Tiles(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of `attend_kernel`.

    Attributes:
        short_rows: rows (times heads of a group) of the tiles of short chunks.
        rows: of the tiles of all others, the same if there are none.
        keys: of a block.
        num_programs: that a multiprocessor is meant to hold at once; each gets a share of the work.
    """

    short_rows: int
    rows: int
    keys: int
    num_warps: int
    num_stages: int
    num_programs: int

    def chunk_rows(self, group: int) -> tuple[int, int]:
        """Rows of a chunk that tiles of either kind hold, `group` query heads sharing a kv head."""
        return self.short_rows // group, self.rows // group


def decode_tiles(group: int, head_dim: int, kv_bytes: int, capability: int) -> Tiles:
    """For passes in which no chunk has more than one row."""
    rows = max(MIN_ROWS, next_power_of_2(group))
    return Tiles(short_rows=rows, rows=rows, keys=64, num_warps=4, num_stages=3, num_programs=2)


def mixed_tiles(group: int, head_dim: int, kv_bytes: int, capability: int) -> Tiles:
    """For all other passes."""
    return Tiles(
        short_rows=max(MIN_ROWS, next_power_of_2(group)), rows=128, keys=64, num_warps=4, num_stages=2, num_programs=2
    )
