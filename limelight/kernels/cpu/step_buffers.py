"""The memory through which a step enters a recorded pass and leaves it: fixed addresses, new contents at each step.

The executor writes what a step says (`counts`, `chunks`, `given_tokens`, the seats); the first operation of the pass
(`csrc/expand.c`) derives from it what the others read.
"""

import msgspec
import numpy as np

from limelight.kernels.cpu.recorder import RowCount

SEAT, START, NUM_TOKENS, IS_GIVEN, NUM_SAMPLED = range(5)
"""Columns of `chunks`: IS_GIVEN is 0 for the one token that the seat drew last, NUM_SAMPLED how many of the last rows
draw a token (guesses included)."""
NUM_COLUMNS = 5


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest step that a pass is recorded for."""

    num_tokens: int
    num_seats: int
    num_sampled: int
    max_pages: int
    page_size: int


class StepBuffers:
    """See the module.

    Attributes:
        counts: int32 [3]: rows, chunks, rows that draw.
        chunks: int32 [seats, NUM_COLUMNS]: one row per chunk of the step.
        given_tokens: int32 [tokens]: token ids of the chunks that bring some, one after the other, by rows of the step
            (the place of a row whose chunk brings none is not read).
        page_table: int32 [seats, max_pages]: pages of the sequence in each seat.
        last_tokens: int32 [seats]: the token that each seat drew last.
        token_ids, positions: int32 [tokens], derived.
        slots: int64 [tokens]: page * page_size + offset of each row, derived.
        query_starts: int32 [seats + 1]; chunk_seats, context_lens: int32 [seats]: of each chunk, derived.
        sample_rows, sample_seats: int32 [sampled]; sample_positions: int64 [sampled], the position of the token that is
            drawn, derived.
        tokens, chunk_count, sampled: how many rows, chunks and rows that draw the step has: `counts`, for recording.
    """

    def __init__(self, limits: StepLimits) -> None:
        self.limits = limits
        self.counts = np.zeros(3, np.int32)
        self.chunks = np.zeros((limits.num_seats, NUM_COLUMNS), np.int32)
        self.given_tokens = np.zeros(limits.num_tokens, np.int32)
        self.page_table = np.zeros((limits.num_seats, limits.max_pages), np.int32)
        self.last_tokens = np.zeros(limits.num_seats, np.int32)
        self.token_ids = np.zeros(limits.num_tokens, np.int32)
        self.positions = np.zeros(limits.num_tokens, np.int32)
        self.slots = np.zeros(limits.num_tokens, np.int64)
        self.query_starts = np.zeros(limits.num_seats + 1, np.int32)
        self.chunk_seats = np.zeros(limits.num_seats, np.int32)
        self.context_lens = np.zeros(limits.num_seats, np.int32)
        self.sample_rows = np.zeros(limits.num_sampled, np.int32)
        self.sample_seats = np.zeros(limits.num_sampled, np.int32)
        self.sample_positions = np.zeros(limits.num_sampled, np.int64)
        self.tokens = RowCount(self.counts[0:1], limits.num_tokens)
        self.chunk_count = RowCount(self.counts[1:2], limits.num_seats)
        self.sampled = RowCount(self.counts[2:3], limits.num_sampled)
