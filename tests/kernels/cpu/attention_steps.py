"""Steps over a pool of random keys and values, with NaN wherever no sequence has written, for the C kernels and for the
reference alike."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from limelight.kernels.cpu import attention
from limelight.kernels.cpu.attention import KVPool
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Recorder, Value, bound
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.cpu.threads import ThreadPool
from limelight.kernels.interface import AttentionBatch, AttentionSettings, KVLayout
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.torch_dtypes import name_of
from tests.kernels.cpu.recorded import run_recorded


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    page_size: int = 16
    dtype: torch.dtype = torch.float32

    def layout(self, num_pages: int) -> KVLayout:
        return KVLayout(
            num_layers=2,
            num_pages=num_pages,
            page_size=self.page_size,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=name_of(self.dtype),
        )


class Step:
    """Chunks of (rows, context): buffers of a step, and the same as an `AttentionBatch`.

    Args:
        tables: pages of each sequence; None: pages in random order.
    """

    def __init__(
        self, chunks: Sequence[tuple[int, int]], page_size: int, tables: list[list[int]] | None = None, seed: int = 0
    ) -> None:
        generator = np.random.default_rng(seed)
        if tables is None:
            counts = [-(-context // page_size) for _, context in chunks]
            pages = iter(generator.permutation(sum(counts) + 3).tolist())
            tables = [[next(pages) for _ in range(count)] for count in counts]
        self.tables = tables
        self.num_pages = max(map(max, tables)) + 4
        positions = [position for rows, context in chunks for position in range(context - rows, context)]
        owners = [index for index, (rows, _) in enumerate(chunks) for _ in range(rows)]
        slots = [
            tables[owner][position // page_size] * page_size + position % page_size
            for owner, position in zip(owners, positions, strict=True)
        ]
        max_pages = max(map(len, tables)) + 1
        num_seats = len(chunks) + 2
        limits = StepLimits(
            num_tokens=len(positions) + 5,
            num_seats=num_seats,
            num_sampled=num_seats,
            max_pages=max_pages,
            page_size=page_size,
        )
        buffers = self.buffers = StepBuffers(limits)
        seats = generator.permutation(num_seats)[: len(chunks)]
        buffers.counts[:] = len(positions), len(chunks), len(chunks)
        buffers.query_starts[: len(chunks) + 1] = np.cumsum([0] + [rows for rows, _ in chunks])
        buffers.context_lens[: len(chunks)] = [context for _, context in chunks]
        buffers.chunk_seats[: len(chunks)] = seats
        buffers.positions[: len(positions)] = positions
        buffers.slots[: len(positions)] = slots
        for seat, table in zip(seats, tables, strict=True):
            buffers.page_table[seat, : len(table)] = table
        self.batch = AttentionBatch(
            page_table=torch.tensor([table + [0] * (max_pages - len(table)) for table in tables], dtype=torch.int32),
            query_starts=torch.from_numpy(buffers.query_starts[: len(chunks) + 1].copy()),
            context_lens=torch.tensor([context for _, context in chunks], dtype=torch.int32),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
        )

    def __len__(self) -> int:
        return len(self.batch.positions)

    def value(self, rows: NDArray[np.float32]) -> Value:
        """Rows [tokens, ...] as a value of the step; the rows that it does not have are NaN."""
        memory = np.full((self.buffers.limits.num_tokens, int(np.prod(rows.shape[1:]))), np.nan, np.float32)
        memory[: len(rows)] = rows.reshape(len(rows), -1)
        return bound(self.buffers.tokens, memory)


def normal(*shape: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def pool_of_nan(layout: KVLayout) -> KVPool:
    kv = attention.allocate_kv(layout)
    for layer in kv.layers:
        layer.fill(0xFF)  # a NaN in every type
    return kv


def write(library: Library, kv: KVPool, layer: int, step: Step, keys: Any, values: Any) -> None:
    """Keys and values [tokens, kv_heads, head_dim] of a step to their slots."""

    def record(recorder: Recorder) -> list[Value]:
        plan = attention.AttentionPlan(step.buffers, kv)
        attention.write(recorder, kv, layer, step.value(keys), step.value(values), plan)
        return []

    run_recorded(library, record)


def attend(
    library: Library,
    kv: KVPool,
    layer: int,
    step: Step,
    queries: Any,
    settings: AttentionSettings,
    pool: ThreadPool | None = None,
) -> NDArray[np.float32]:
    """Attention of `queries` [tokens, heads, head_dim]."""

    def record(recorder: Recorder) -> list[Value]:
        plan = attention.AttentionPlan(step.buffers, kv)
        return [attention.attend(recorder, kv, layer, step.value(queries), plan, settings)]

    [outputs] = run_recorded(library, record, pool)
    return outputs


@dataclass
class Contexts:
    """Keys and values [context, kv_heads, head_dim] of each sequence of a step, as the pool's dtype rounds them."""

    keys: list[NDArray[np.float32]]
    values: list[NDArray[np.float32]]


def random_contexts(step: Step, shape: Shape, seed: int) -> Contexts:
    lengths = step.batch.context_lens.tolist()
    made: list[list[NDArray[np.float32]]] = [[], []]
    for part, (chunk, length) in itertools.product((0, 1), enumerate(lengths)):
        exact = normal(length, shape.kv_heads, shape.head_dim, seed=seed + 2 * chunk + part)
        made[part].append(torch.from_numpy(exact).to(shape.dtype).float().numpy())
    return Contexts(*made)


def filled_pool(library: Library, step: Step, shape: Shape, contexts: Contexts, layer: int = 1) -> KVPool:
    """A pool of NaN with the contexts of a step."""
    kv = pool_of_nan(shape.layout(step.num_pages))
    lengths = step.batch.context_lens.tolist()
    whole = Step([(length, length) for length in lengths], shape.page_size, step.tables)
    write(library, kv, layer, whole, np.concatenate(contexts.keys), np.concatenate(contexts.values))
    return kv


def expected(
    step: Step, shape: Shape, contexts: Contexts, queries: NDArray[np.float32], settings: AttentionSettings
) -> NDArray[np.float32]:
    """What the reference gives in float32 for keys and values as they are rounded."""
    kernels = ReferenceKernels("cpu")
    exact = Shape(shape.heads, shape.kv_heads, shape.head_dim, shape.page_size)
    kv = kernels.allocate_kv(exact.layout(step.num_pages))
    kv.layers[1].fill_(torch.nan)
    for chunk, table in enumerate(step.tables):
        positions = np.arange(len(contexts.keys[chunk]))
        slots = np.array(table)[positions // shape.page_size] * shape.page_size + positions % shape.page_size
        both = np.stack((contexts.keys[chunk], contexts.values[chunk]), 1)
        kv.layers[1][torch.from_numpy(slots)] = torch.from_numpy(both)
    attended = kernels.attend(kv, 1, torch.from_numpy(queries), kernels.plan(step.batch, kv), settings)
    return attended.numpy()
