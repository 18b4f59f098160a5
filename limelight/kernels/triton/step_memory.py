"""The device memory that a step reads and writes beside weights, pages and activations. All of it is fixed in size and
place, so that a captured pass finds its inputs where they were when it was captured.

Everything is int32 words. What the host knows comes as one copy from pinned memory (`StepWords`), what outlives a step
lies in a table of seats (`SeatWords`), which the host changes by *patches*: pairs of address and word that come with a
step and are written before anything reads the table. Floats travel as their bits.

    pinned host memory --one copy--> StepWords --patches--> SeatWords
                                        |                      |
                                        +------- prepare ------+--> positions, slots, token ids of the rows
    drawn tokens --> SeatWords (the next step reads them there), and a pinned copy for the host
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

HEADER_WORDS = 16
NUM_CHUNKS, NUM_ROWS, NUM_SAMPLED, NUM_DRAWING, NUM_PATCHES = range(5)
"""Words of the header: how many entries of each part this step fills."""

LAST_TOKEN_OF_SEAT = -1
"""Instead of a token id: the last token that was drawn for the chunk's seat."""
NOBODY = -1
"""Instead of a seat, a slot or a mask: of a row, chunk or entry that only fills a buffer up."""

MAX_BIAS = 1024
"""Tokens of a seat whose logits get something added, blocked ones included."""

FLOAT_FIELDS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGER_FIELDS = (
    "last_token",
    "top_k",
    "seed_low",
    "seed_high",
    "has_penalties",
    "num_blocked",
    "blocked_below_position",
    "num_bias",
)


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Most entries of each part of `StepWords`.

    Attributes:
        rows: tokens of a step.
        chunks: of a step: the seats.
        sampled: rows of a step from which tokens are drawn, those behind guesses included.
        patches: words of the seat table that a step may change; the host sends more in several rounds.
    """

    rows: int
    chunks: int
    sampled: int
    patches: int


@dataclass(frozen=True)
class StepWords:
    """Views of what a step brings, over one int32 tensor: the host's pinned one or the device's.

    The parts lie in this order, the tokens last, so that a short step copies a short prefix.

    Attributes:
        header: [HEADER_WORDS].
        chunk_seats: [chunks]; NOBODY behind the last.
        chunk_starts: [chunks], position of each chunk's first row.
        query_starts: [chunks + 1], row at which each chunk begins; behind the last chunk the number of rows.
        drawing_seats: [chunks], seats of the chunks that draw; NOBODY behind the last.
        drawing_first: [chunks], number of the first sampled row of each.
        drawing_drafts: [chunks], guesses of each: it has one sampled row more.
        sample_rows: [sampled], which rows of the step are sampled; 0 behind the last.
        sample_seats: [sampled]; NOBODY behind the last.
        sample_positions: [sampled], of the token that is drawn.
        sample_masks: [sampled], row of the table of allowed tokens, or NOBODY.
        patch_addresses: [patches], word of the seat table; each at most once in a step.
        patch_values: [patches].
        token_ids: [rows]; LAST_TOKEN_OF_SEAT where the host need not know it.
    """

    words: Tensor
    limits: StepLimits
    header: Tensor = field(init=False)
    chunk_seats: Tensor = field(init=False)
    chunk_starts: Tensor = field(init=False)
    query_starts: Tensor = field(init=False)
    drawing_seats: Tensor = field(init=False)
    drawing_first: Tensor = field(init=False)
    drawing_drafts: Tensor = field(init=False)
    sample_rows: Tensor = field(init=False)
    sample_seats: Tensor = field(init=False)
    sample_positions: Tensor = field(init=False)
    sample_masks: Tensor = field(init=False)
    patch_addresses: Tensor = field(init=False)
    patch_values: Tensor = field(init=False)
    token_ids: Tensor = field(init=False)

    def __post_init__(self) -> None:
        first = 0
        for name, size in step_parts(self.limits):
            object.__setattr__(self, name, self.words[first : first + size])
            first += size

    def num_words(self, num_rows: int) -> int:
        """Length of the prefix that a step of so many rows fills."""
        return len(self.words) - self.limits.rows + num_rows


def step_parts(limits: StepLimits) -> list[tuple[str, int]]:
    """Names of the parts of `StepWords` in their order, with their sizes in words."""
    chunks, sampled = limits.chunks, limits.sampled
    parts = [("header", HEADER_WORDS), ("chunk_seats", chunks), ("chunk_starts", chunks), ("query_starts", chunks + 1)]
    parts += [(f"drawing_{name}", chunks) for name in ("seats", "first", "drafts")]
    parts += [(f"sample_{name}", sampled) for name in ("rows", "seats", "positions", "masks")]
    parts += [("patch_addresses", limits.patches), ("patch_values", limits.patches), ("token_ids", limits.rows)]
    return parts


def step_words(limits: StepLimits) -> int:
    """Length of the tensor behind `StepWords`."""
    return sum(size for _, size in step_parts(limits))


class SeatLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where the words of a seat lie in its row of the table: integers, floats, bias, pages.

    Attributes:
        max_pages: pages of the longest context.
    """

    max_pages: int

    @property
    def bias_ids(self) -> int:
        """First word of the [MAX_BIAS] token ids of bias; `num_bias` are there, and `num_blocked` of them, which come
        first, count only where the position of the drawn token is below `blocked_below_position`. Both parts ascend.
        """
        return len(INTEGER_FIELDS) + len(FLOAT_FIELDS)

    @property
    def bias_values(self) -> int:
        """First word of the [MAX_BIAS] floats that belong to them; minus infinity for blocked ones."""
        return self.bias_ids + MAX_BIAS

    @property
    def pages(self) -> int:
        """First word of the page table."""
        return self.bias_values + MAX_BIAS

    @property
    def words(self) -> int:
        """Words of a seat."""
        return self.pages + self.max_pages

    def word_of(self, name: str) -> int:
        """Word of an integer or float field."""
        return (*INTEGER_FIELDS, *FLOAT_FIELDS).index(name)


@dataclass(frozen=True)
class SeatWords:
    """The table of seats on the device: [seats, layout.words] int32.

    Attributes:
        counts: [seats, vocab] int32, for seats with penalties: how often each token is in the output, and
            `IN_PROMPT` added where it is in the prompt. Written when such a seat is taken, counted up as it draws.
    """

    words: Tensor
    layout: SeatLayout
    counts: Tensor

    @property
    def last_tokens(self) -> Tensor:
        """[seats], strided."""
        return self.words[:, self.layout.word_of("last_token")]

    @property
    def page_table(self) -> Tensor:
        """[seats, max_pages], strided."""
        return self.words[:, self.layout.pages :]


IN_PROMPT = 1 << 30


@dataclass(frozen=True)
class RowBatch:
    """What stands for an `AttentionBatch` in a pass over fixed buffers; filled by `prepare`.

    Attributes:
        step, seats: what it was made from; attention reads `query_starts`, `chunk_seats` and the page table there.
        context_lens: [chunks] int32, 0 for chunks that aren't there.
        token_ids: [rows] int32, 0 for rows that aren't there.
        positions: [rows] int32, 0 for these.
        slots: [rows] int32, page * page_size + offset where the row's key and value go; NOBODY for these.
        only_decodes: no chunk has more than one row.
    """

    step: StepWords
    seats: SeatWords
    context_lens: Tensor
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    only_decodes: bool


@dataclass(frozen=True)
class DrawBatch:
    """What stands for a `SamplingBatch` in a pass over fixed buffers.

    Attributes:
        num_sampled: rows of logits, of which the step fills the first ones.
        allowed: [masks, ceil(vocab / 32)] int32, a bit per token that a row may draw; `step.sample_masks` points here.
        row_token_ids: [rows] int32 of the step, where the guesses are: the one behind a sampled row is in the next row.
    """

    step: StepWords
    seats: SeatWords
    num_sampled: int
    allowed: Tensor
    row_token_ids: Tensor


@dataclass(frozen=True)
class DrawnWords:
    """What a step leaves for the host, over one int32 tensor: the device's, or the host's pinned copy.

    Attributes:
        token_ids: [sampled], drawn.
        num_accepted: [chunks], per chunk that draws: its leading guesses that agree with what was drawn.
        best_logits: [sampled] float bits, the largest logit as the model gave it; NaN if one is NaN.
        best_scores: [sampled] float bits, the largest of what the row's token is drawn by, after penalties, bias and
            masks; minus infinity if the row has no token to draw.
    """

    words: Tensor
    limits: StepLimits

    @property
    def token_ids(self) -> Tensor:
        """[sampled]."""
        return self.words[: self.limits.sampled]

    @property
    def best_logits(self) -> Tensor:
        """[sampled] float32."""
        import torch

        return self.words[self.limits.sampled : 2 * self.limits.sampled].view(torch.float32)

    @property
    def best_scores(self) -> Tensor:
        """[sampled] float32."""
        import torch

        return self.words[2 * self.limits.sampled : 3 * self.limits.sampled].view(torch.float32)

    @property
    def num_accepted(self) -> Tensor:
        """[chunks]."""
        return self.words[3 * self.limits.sampled : 3 * self.limits.sampled + self.limits.chunks]


def drawn_words(limits: StepLimits) -> int:
    """Length of the tensor behind `DrawnWords`."""
    return 3 * limits.sampled + limits.chunks
