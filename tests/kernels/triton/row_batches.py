"""Steps in the memory that Triton's kernels read, with pages and seats in random order."""

from dataclasses import dataclass

import numpy as np
import torch

from limelight.kernels.interface import AttentionBatch
from limelight.kernels.triton.step_memory import (
    NOBODY,
    RowBatch,
    SeatLayout,
    SeatWords,
    StepLimits,
    StepWords,
    step_words,
)

MAX_SEATS = 9
POISON = 1 << 30
"""What must never be used as a number of anything."""


@dataclass(frozen=True)
class Step:
    """One step for both: what Triton's kernels take, and the same for the reference."""

    rows: RowBatch
    reference: AttentionBatch
    num_rows: int


def step_of(
    chunks: list[tuple[int, int]],
    *,
    page_size: int,
    num_pages: int,
    bucket: int | None = None,
    shared_pages: int = 0,
    seed: int = 0,
) -> Step:
    """Chunks of (rows, context), filled up to `bucket` rows.

    Args:
        shared_pages: leading pages that all sequences have in common, as far as they have so many before their chunk.
    """
    random = np.random.default_rng(seed)
    pages = iter(random.permutation(num_pages).tolist())
    common = [next(pages) for _ in range(shared_pages)]
    num_rows = sum(rows for rows, _ in chunks)
    bucket = max(1, num_rows) if bucket is None else bucket
    limits = StepLimits(rows=bucket, chunks=MAX_SEATS, sampled=MAX_SEATS, patches=1)
    step = StepWords(torch.full((step_words(limits),), POISON, dtype=torch.int32), limits)
    layout = SeatLayout(max_pages=max([-(-context // page_size) for _, context in chunks], default=0) + 1)
    seats = SeatWords(torch.full((MAX_SEATS, layout.words), POISON, dtype=torch.int32), layout, torch.empty(0))

    seat_order = random.permutation(MAX_SEATS).tolist()
    context_lens = torch.zeros(MAX_SEATS, dtype=torch.int32)
    positions = torch.zeros(bucket, dtype=torch.int32)
    slots = torch.full((bucket,), NOBODY, dtype=torch.int32)
    step.chunk_seats.fill_(NOBODY)
    step.query_starts.fill_(num_rows)
    tables = []
    row = 0
    for number, (rows, context) in enumerate(chunks):
        own = max(0, -(-context // page_size))
        leading = common[: (context - rows) // page_size]
        table = leading + [next(pages) for _ in range(own - len(leading))]
        tables.append(table)
        seats.page_table[seat_order[number], : len(table)] = torch.tensor(table, dtype=torch.int32)
        step.chunk_seats[number] = seat_order[number]
        step.query_starts[number] = row
        context_lens[number] = context
        for position in range(context - rows, context):
            positions[row] = position
            slots[row] = table[position // page_size] * page_size + position % page_size
            row += 1
    longest = max(map(len, tables), default=0) + 1
    reference = AttentionBatch(
        page_table=torch.tensor([table + [0] * (longest - len(table)) for table in tables], dtype=torch.int32),
        query_starts=step.query_starts[: len(chunks) + 1].clone(),
        context_lens=context_lens[: len(chunks)],
        positions=positions[:num_rows].long(),
        slots=slots[:num_rows].long(),
    )
    only_decodes = all(rows <= 1 for rows, _ in chunks)
    token_ids = torch.zeros(bucket, dtype=torch.int32)
    return Step(RowBatch(step, seats, context_lens, token_ids, positions, slots, only_decodes), reference, num_rows)
