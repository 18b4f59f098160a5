"""The device memory that captured passes read and write, made once; and how large a step may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.kernels.triton.step_memory import (
    DrawnWords,
    RowBatch,
    SeatLayout,
    SeatWords,
    StepLimits,
    StepWords,
    drawn_words,
)
from limelight.models.captured.host_words import empty_step
from limelight.models.recorded_step_executor import most_sampled
from limelight.models.token_masks import WORD_BYTES, mask_bytes
from limelight.step import Capacity

PATCHES = 2048
"""Words of the seat table that one copy changes: some dozens of new sequences, or a context of 32,768 tokens at once.
More come in further copies."""


def captured_limits(capacity: Capacity, num_speculative_tokens: int) -> StepLimits:
    """The largest step that a scheduler with these settings makes."""
    return StepLimits(
        rows=capacity.max_num_batched_tokens,
        chunks=capacity.num_seats,
        sampled=most_sampled(capacity.max_num_batched_tokens, capacity.num_seats, num_speculative_tokens),
        patches=PATCHES,
    )


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What passes share; see `step_memory.py`.

    Attributes:
        context_lens, token_ids, positions, slots: what `prepare` fills, for the largest step.
        hidden, residual: [sampled, hidden_size], what the layers leave for the head.
        allowed: [sampled, words of a mask].
        adapter_rows: [2 * rows] int32, the rows of each adapter among all, and among the sampled ones.
    """

    limits: StepLimits
    step: StepWords
    seats: SeatWords
    drawn: DrawnWords
    context_lens: Tensor
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    hidden: Tensor
    residual: Tensor
    allowed: Tensor
    adapter_rows: Tensor

    def empty(self) -> None:
        """Hold a step without rows again, which passes of any size can run. Nothing may be in flight."""
        self.step.words.copy_(torch.from_numpy(empty_step(self.limits)))

    def batch(self, num_rows: int, num_chunks: int, *, only_decodes: bool) -> RowBatch:
        """The first rows and chunks."""
        return RowBatch(
            step=self.step,
            seats=self.seats,
            context_lens=self.context_lens[:num_chunks],
            token_ids=self.token_ids[:num_rows],
            positions=self.positions[:num_rows],
            slots=self.slots[:num_rows],
            only_decodes=only_decodes,
        )


def make_buffers(
    capacity: Capacity, limits: StepLimits, *, hidden_size: int, dtype: torch.dtype, device: str
) -> StepBuffers:
    """Buffers that hold a step without rows, over seats where nobody sits."""

    def words(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    layout = SeatLayout(max_pages=-(-capacity.max_model_len // capacity.page_size))
    empty = torch.from_numpy(empty_step(limits)).to(device)
    return StepBuffers(
        limits=limits,
        step=StepWords(empty, limits),
        seats=SeatWords(
            words(capacity.num_seats, layout.words), layout, words(capacity.num_seats, capacity.vocab_size)
        ),
        drawn=DrawnWords(words(drawn_words(limits)), limits),
        context_lens=words(limits.chunks),
        token_ids=words(limits.rows),
        positions=words(limits.rows),
        slots=words(limits.rows),
        hidden=torch.zeros(limits.sampled, hidden_size, dtype=dtype, device=device),
        residual=torch.zeros(limits.sampled, hidden_size, dtype=dtype, device=device),
        allowed=words(limits.sampled, mask_bytes(capacity.vocab_size) // WORD_BYTES),
        adapter_rows=words(2 * limits.rows),
    )
