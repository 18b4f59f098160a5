"""What a step brings becomes what its rows read: patches of the table of seats, then positions, slots and token ids.

Each is one launch whose grid depends on the sizes of the buffers alone; how much of them a step fills is read from its
header on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from limelight.kernels.triton.build import KernelBuild
from limelight.kernels.triton.step_kernels import patch_seats_kernel, prepare_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limelight.kernels.triton.step_memory import RowBatch, SeatWords, StepWords

BLOCK = 256
"""Entries of a program."""
WARPS = 4


def patch_seats(step: StepWords, seats: SeatWords) -> None:
    """Write the step's patches into the table of seats."""
    patch_seats_kernel[(triton.cdiv(step.limits.patches, BLOCK),)](
        step.header, step.patch_addresses, step.patch_values, seats.words, BLOCK=BLOCK, num_warps=WARPS
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
        num_warps=WARPS,
    )


def builds() -> Iterator[KernelBuild]:
    """What the functions above launch."""
    words = ("header", "addresses", "values", "table", "chunk_seats", "chunk_starts", "query_starts", "step_token_ids")
    sizes = ("seat_words", "last_token_word", "pages_word", "most_rows", "most_chunks", "page_size", "num_halvings")
    known: dict[str, object] = dict.fromkeys(
        (*words, "seats", "context_lens", "token_ids", "positions", "slots"), "*i32"
    )
    known |= dict.fromkeys(sizes, "i32") | {"BLOCK": BLOCK}
    for name, kernel in (("patch seats", patch_seats_kernel), ("prepare", prepare_kernel)):
        arguments = {parameter.name: known[parameter.name] for parameter in kernel.params}
        yield KernelBuild(name, kernel, arguments, num_warps=WARPS, num_stages=3)
