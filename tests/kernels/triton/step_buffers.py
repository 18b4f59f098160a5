"""Buffers of a step, filled as an executor fills them."""

import random
from collections.abc import Sequence

import torch

from limelight.kernels.triton.step_memory import (
    LAST_TOKEN_OF_SEAT,
    NOBODY,
    NUM_CHUNKS,
    NUM_DRAWING,
    NUM_PATCHES,
    NUM_ROWS,
    NUM_SAMPLED,
    RowBatch,
    SeatLayout,
    SeatWords,
    StepLimits,
    StepWords,
    step_words,
)
from limelight.step import Chunk

GARBAGE = 12345678
"""What a buffer holds from the step before."""


def seat_words(num_seats: int, max_pages: int, vocab_size: int) -> SeatWords:
    layout = SeatLayout(max_pages=max_pages)
    return SeatWords(
        torch.zeros(num_seats, layout.words, dtype=torch.int32),
        layout,
        torch.zeros(num_seats, vocab_size, dtype=torch.int32),
    )


def empty_step(limits: StepLimits) -> StepWords:
    step = StepWords(torch.full((step_words(limits),), GARBAGE, dtype=torch.int32), limits)
    step.header[:] = 0
    for part in (step.chunk_seats, step.drawing_seats, step.sample_seats, step.sample_masks):
        part[:] = NOBODY
    step.sample_rows[:] = 0
    return step


def fill_chunks(step: StepWords, chunks: Sequence[Chunk]) -> None:
    """What the chunks say, but for their pages."""
    row = sampled = drawing = 0
    for index, chunk in enumerate(chunks):
        step.chunk_seats[index], step.chunk_starts[index], step.query_starts[index] = chunk.seat, chunk.start, row
        given = (LAST_TOKEN_OF_SEAT,) if chunk.token_ids is None else chunk.token_ids
        step.token_ids[row : row + chunk.num_tokens] = torch.tensor(given, dtype=torch.int32)
        row += chunk.num_tokens
        if not chunk.sample:
            continue
        step.drawing_seats[drawing] = chunk.seat
        step.drawing_first[drawing], step.drawing_drafts[drawing] = sampled, chunk.num_drafts
        drawing += 1
        for behind in range(chunk.num_drafts, -1, -1):
            step.sample_rows[sampled], step.sample_seats[sampled] = row - 1 - behind, chunk.seat
            step.sample_positions[sampled] = chunk.start + chunk.num_tokens - behind
            sampled += 1
    step.query_starts[len(chunks) :] = row
    step.header[NUM_CHUNKS], step.header[NUM_ROWS] = len(chunks), row
    step.header[NUM_SAMPLED], step.header[NUM_DRAWING] = sampled, drawing


def fill_patches(step: StepWords, patches: dict[int, int]) -> None:
    step.header[NUM_PATCHES] = len(patches)
    step.patch_addresses[: len(patches)] = torch.tensor(list(patches), dtype=torch.int32)
    step.patch_values[: len(patches)] = torch.tensor(list(patches.values()), dtype=torch.int32)


def row_batch(step: StepWords, seats: SeatWords, num_rows: int, num_chunks: int) -> RowBatch:
    def garbage(size: int) -> torch.Tensor:
        return torch.full((size,), GARBAGE, dtype=torch.int32)

    return RowBatch(
        step, seats, garbage(num_chunks), garbage(num_rows), garbage(num_rows), garbage(num_rows), only_decodes=False
    )


def random_chunks(
    rng: random.Random, num_seats: int, max_model_len: int, page_size: int, most_rows: int
) -> tuple[Chunk, ...]:
    """Decodes, prompts' parts and guesses in random order, each with all its pages; lengths often at page borders."""
    chunks = []
    for seat in rng.sample(range(num_seats), rng.randint(1, num_seats)):
        num_tokens = 1 if rng.random() < 0.5 else rng.choice([2, 3, page_size, page_size + 1])
        if most_rows < num_tokens:
            break
        most_rows -= num_tokens
        last_start = max_model_len - num_tokens
        start = min(rng.choice([0, 1, page_size - 1, page_size, rng.randint(0, last_start)]), last_start)
        num_pages = -(-(start + num_tokens) // page_size)
        sample = rng.random() < 0.7
        chunks.append(
            Chunk(
                seat=seat,
                start=start,
                num_tokens=num_tokens,
                token_ids=None
                if num_tokens == 1 and rng.random() < 0.7
                else tuple(rng.randrange(1000) for _ in range(num_tokens)),
                new_pages=tuple(rng.randrange(1, 5000) for _ in range(num_pages)),
                sample=sample,
                num_drafts=rng.randint(0, num_tokens - 1) if sample else 0,
            )
        )
    return tuple(chunks)
