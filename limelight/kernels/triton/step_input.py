"""What a step brings becomes what its rows read: patches of the table of seats, then positions, slots and token ids.

Each is one launch whose grid depends on the sizes of the buffers alone; how much of them a step fills is read from its
header on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from limelight.kernels.triton.step_kernels import patch_seats_kernel, prepare_kernel

if TYPE_CHECKING:
    from limelight.kernels.triton.step_memory import RowBatch, SeatWords, StepWords

BLOCK = 256
"""Entries of a program."""


def patch_seats(step: StepWords, seats: SeatWords) -> None:
    """Write the step's patches into the table of seats."""
    patch_seats_kernel[(triton.cdiv(step.limits.patches, BLOCK),)](
        step.header, step.patch_addresses, step.patch_values, seats.words, BLOCK=BLOCK
    )


def prepare(batch: RowBatch, page_size: int) -> None:
    """Fill `batch` from its step and its seats, whose patches have been applied."""
    step, layout = batch.step, batch.seats.layout
    num_rows, num_chunks = len(batch.token_ids), len(batch.context_lens)
    prepare_kernel[(triton.cdiv(max(num_rows, num_chunks), BLOCK),)](
        step.header,
        step.chunk_seats,
        step.chunk_starts,
        step.query_starts,
        step.token_ids,
        batch.seats.words,
        batch.seats.words.stride(0),
        layout.word_of("last_token"),
        layout.pages,
        batch.context_lens,
        batch.token_ids,
        batch.positions,
        batch.slots,
        num_rows,
        num_chunks,
        page_size,
        step.limits.chunks.bit_length(),
        BLOCK=BLOCK,
    )
