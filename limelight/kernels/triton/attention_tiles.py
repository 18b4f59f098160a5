"""Sizes of the tiles of attention, chosen by what the compiler makes of them (`docs/gpu_kernels.md`)."""

from __future__ import annotations

import msgspec
from triton import next_power_of_2

MIN_ROWS = 16
"""Fewest rows of a matrix product."""
LARGE_MEMORY = (90, 100, 103)
"""Compute capabilities times ten with 227 KiB of shared memory for a program, and twice the matrix units."""
SMALL_MEMORY = (86, 89, 120, 121)
"""Those with 99 KiB. All others have 163 KiB."""


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
    """For passes in which no chunk has more than one row: bound by memory.

    A block is 32 KiB of keys and values. Two programs per processor, each with `num_stages - 2` further blocks on their
    way, keep 64 to 128 KiB in flight, where bandwidth times latency is about 40 KiB per processor of an H200.
    """
    rows = max(MIN_ROWS, next_power_of_2(group))
    # Without instructions for 8 bits, turning twice as many keys into 16 takes more registers than there are.
    is_large = capability in LARGE_MEMORY
    key_bytes = next_power_of_2(head_dim) * (kv_bytes if is_large else 2)
    keys = min(128, 16384 // key_bytes)
    if capability in SMALL_MEMORY:
        keys = max(16, keys // 2)
    num_stages = 4 if is_large else 3
    return Tiles(short_rows=rows, rows=rows, keys=keys, num_warps=4, num_stages=num_stages, num_programs=2)


def mixed_tiles(group: int, head_dim: int, kv_bytes: int, capability: int) -> Tiles:
    """For all other passes: bound by matrix products, decodes included as tiles of their own size.

    One size for both would not do: in tiles of 128 rows a decode of one row would take longer to multiply than to
    read, and tiles of 16 rows would read a prompt's keys eight times as often, from a second-level cache which already
    tiles of 64 rows ask for as much as it gives. With both kinds in one kernel each of them has the registers of the
    larger: on Hopper 128 rows need two groups of four warps, which leaves one program per processor.
    """
    short_rows = max(MIN_ROWS, next_power_of_2(group))
    if head_dim > 128:
        sizes = Tiles(short_rows=short_rows, rows=64, keys=32, num_warps=8, num_stages=2, num_programs=1)
    elif capability in LARGE_MEMORY:
        sizes = Tiles(short_rows=short_rows, rows=128, keys=64, num_warps=8, num_stages=3, num_programs=1)
    else:
        sizes = Tiles(short_rows=short_rows, rows=64, keys=32, num_warps=4, num_stages=3, num_programs=2)
    return msgspec.structs.replace(sizes, rows=max(sizes.rows, short_rows))
