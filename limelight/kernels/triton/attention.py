"""Attention over pages on a GPU: the work of a step is shared out once per window, a layer then takes two launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from torch import Tensor
from triton import cdiv, next_power_of_2

from limelight.kernels.interface import KV_DTYPE_BYTES, AttentionSettings
from limelight.kernels.triton.attention_kernels import attend_kernel
from limelight.kernels.triton.attention_merge_kernels import merge_kernel
from limelight.kernels.triton.attention_plan_kernels import plan_kernel
from limelight.kernels.triton.attention_tiles import Tiles, decode_tiles, mixed_tiles
from limelight.kernels.triton.build import KernelBuild
from limelight.kernels.triton.kv import TritonKV, float8_of
from limelight.kernels.triton.shapes import KernelShape
from limelight.kernels.triton.step_memory import RowBatch

PLAN_TILES = 512
"""Tiles that the plan works out at once."""
PLAN_WARPS = 8
MERGED_VALUES = 4096
"""Partial values that a program reads at once: enough in flight, and 32 registers a thread."""
MERGE_WARPS = 4


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU: compute capability times ten, and its number of streaming multiprocessors."""

    capability: int
    num_processors: int


@dataclass(frozen=True, slots=True)
class SharedWork:
    """The work of a step in layers with one window, as `plan_kernel` leaves it, and room for partial results.

    Attributes:
        tile_ends, tile_chunks, tile_rows: [tiles] int32.
        partial_results: [programs, 2, tiles.rows, head_dim] float32.
        partial_sums: [programs, 2, 2, tiles.rows] float32.
    """

    tiles: Tiles
    tile_ends: Tensor
    tile_chunks: Tensor
    tile_rows: Tensor
    partial_results: Tensor
    partial_sums: Tensor


@dataclass(slots=True)
class AttentionPlan:
    """Attention of a step; the work is shared out when the first layer with a given window asks.

    Attributes:
        batch: also read by what writes keys and values.
    """

    batch: RowBatch
    kv: TritonKV
    processor: Processor
    _work: dict[tuple[int | None, int], SharedWork] = field(default_factory=dict)

    def work(self, window: int | None, num_heads: int) -> SharedWork:
        """The work in layers with this sliding window and so many query heads."""
        found = self._work.get((window, num_heads))
        if found is None:
            found = self._work[window, num_heads] = self._shared_out(window, num_heads)
        return found

    def _shared_out(self, window: int | None, num_heads: int) -> SharedWork:
        layout, step = self.kv.layout, self.batch.step
        group = num_heads // layout.num_kv_heads
        choose = decode_tiles if self.batch.only_decodes else mixed_tiles
        tiles = choose(group, layout.head_dim, KV_DTYPE_BYTES[layout.dtype], self.processor.capability)
        short_chunk, rows_of_tile = tiles.chunk_rows(group)
        num_chunks, num_rows = len(self.batch.context_lens), len(self.batch.slots)
        num_tiles = num_chunks if self.batch.only_decodes else num_chunks + num_rows // rows_of_tile
        programs = tiles.num_programs * self.processor.num_processors
        tile_ends, tile_chunks, tile_rows = self.batch.slots.new_empty(3, num_tiles).unbind()
        new_floats = self.kv.scales.new_empty
        work = SharedWork(
            tiles=tiles,
            tile_ends=tile_ends,
            tile_chunks=tile_chunks,
            tile_rows=tile_rows,
            partial_results=new_floats(programs, 2, tiles.rows, layout.head_dim),
            partial_sums=new_floats(programs, 2, 2, tiles.rows),
        )
        plan_kernel[(1,)](
            work.tile_ends,
            work.tile_chunks,
            work.tile_rows,
            step.query_starts,
            self.batch.context_lens,
            num_chunks,
            num_tiles,
            window,
            SHORT_ROWS=short_chunk,
            TILE_ROWS=rows_of_tile,
            KEYS=tiles.keys,
            CHUNK_BITS=chunk_bits(step.limits.chunks),
            BLOCK_TILES=PLAN_TILES,
            num_warps=PLAN_WARPS,
            enable_fp_fusion=True,
        )
        return work


def attend(layer: int, queries: Tensor, plan: AttentionPlan, settings: AttentionSettings) -> Tensor:
    """See `Kernels.attend`. Rows behind the last chunk become 0."""
    kv, step = plan.kv, plan.batch.step
    tokens, num_heads, head_dim = queries.shape
    work = plan.work(settings.sliding_window, num_heads)
    num_programs, num_tiles = len(work.partial_sums), len(work.tile_ends)
    outputs = queries.new_empty(tokens, num_heads * head_dim)
    constants = _constants(num_heads, kv.layout.num_kv_heads, head_dim, work.tiles, kv.float8)
    attend_kernel[(num_programs,)](
        outputs,
        queries,
        kv.layers[layer],
        kv.scales[layer],
        settings.sinks,
        work.partial_results,
        work.partial_sums,
        work.tile_ends,
        work.tile_chunks,
        work.tile_rows,
        step.query_starts,
        plan.batch.context_lens,
        step.chunk_seats,
        plan.batch.seats.page_table,
        len(plan.batch.context_lens),
        num_tiles,
        tokens,
        plan.batch.seats.layout.words,
        settings.scale,
        settings.soft_cap,
        settings.sliding_window,
        PAGE_SIZE=kv.layout.page_size,
        SHORT_TILE=work.tiles.short_rows,
        KEYS=work.tiles.keys,
        **constants,
        num_warps=work.tiles.num_warps,
        enable_fp_fusion=True,
        num_stages=work.tiles.num_stages,
    )
    rows, parts = merged_at_once(work.tiles, head_dim)
    used_rows = num_heads // kv.layout.num_kv_heads if plan.batch.only_decodes else work.tiles.rows
    merge_kernel[num_programs - 1, cdiv(used_rows, rows)](
        outputs,
        kv.scales[layer],
        settings.sinks,
        work.partial_results,
        work.partial_sums,
        work.tile_ends,
        work.tile_chunks,
        work.tile_rows,
        step.query_starts,
        num_programs,
        num_tiles,
        ROWS=rows,
        PARTS=parts,
        **constants,
        num_warps=MERGE_WARPS,
        enable_fp_fusion=True,
    )
    return outputs


def chunk_bits(num_chunks: int) -> int:
    """Two to this is not less than the number of chunks."""
    return (num_chunks - 1).bit_length()


def merged_at_once(tiles: Tiles, head_dim: int) -> tuple[int, int]:
    """Rows of a tile that a program merges, and partial results that it reads at once. A decode is merged row by row:
    one long context may be in as many parts as there are programs. Tiles of a prompt are in few parts.
    """
    values = MERGED_VALUES // next_power_of_2(head_dim)
    return (1, values) if tiles.rows == tiles.short_rows else (values // 4, 4)


def builds(shape: KernelShape, capability: int) -> Iterator[KernelBuild]:
    """What a plan and `attend` launch for a model: decodes only, then mixed passes."""
    group = shape.num_heads // shape.num_kv_heads
    in_8_bits = shape.kv_dtype == "fp8"
    for name, choose in (("decode", decode_tiles), ("mixed", mixed_tiles)):
        tiles = choose(group, shape.head_dim, 1 if in_8_bits else 2, capability)
        short_rows, tile_rows = tiles.chunk_rows(group)
        rows, parts = merged_at_once(tiles, shape.head_dim)
        float8 = float8_of(in_8_bits=in_8_bits, capability=capability)
        known: dict[str, object] = {**_constants(shape.num_heads, shape.num_kv_heads, shape.head_dim, tiles, float8)}
        known |= dict.fromkeys(("tile_ends", "tile_chunks", "tile_rows", "query_starts", "context_lens"), "*i32")
        known |= dict.fromkeys(("num_chunks", "num_tiles", "num_programs", "end_row", "seat_stride"), "i32")
        known |= dict.fromkeys(("outputs", "queries"), f"*{shape.dtype}")
        known |= dict.fromkeys(("scales", "partial_results", "partial_sums"), "*fp32")
        known |= {
            "pool": "*u8" if in_8_bits else f"*{shape.kv_dtype}",
            "sinks": "*fp32" if shape.sinks else None,
            "chunk_seats": "*i32",
            "page_table": "*i32",
            "scale": "fp32",
            "soft_cap": "fp32" if shape.soft_cap else None,
            "window": "i32" if shape.window else None,
            "PAGE_SIZE": shape.page_size,
            "SHORT_TILE": tiles.short_rows,
            "KEYS": tiles.keys,
            "SHORT_ROWS": short_rows,
            "TILE_ROWS": tile_rows,
            "CHUNK_BITS": chunk_bits(256),
            "BLOCK_TILES": PLAN_TILES,
            "ROWS": rows,
            "PARTS": parts,
        }
        for title, kernel, num_warps, num_stages in (
            ("attention plan", plan_kernel, PLAN_WARPS, 3),
            ("attention", attend_kernel, tiles.num_warps, tiles.num_stages),
            ("attention merge", merge_kernel, MERGE_WARPS, 3),
        ):
            arguments = {parameter.name: known[parameter.name] for parameter in kernel.params}
            # Mixed passes have room for a spill or two beside their matrix products.
            yield KernelBuild(
                f"{title}, {name}, {shape.name}", kernel, arguments, num_warps, num_stages, may_spill=name == "mixed"
            )


def _constants(num_heads: int, num_kv_heads: int, head_dim: int, tiles: Tiles, float8: int) -> dict[str, int]:
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "TILE": tiles.rows,
        "FLOAT8": float8,
    }
