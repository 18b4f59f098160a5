"""The chunks of a step as arrays: what goes into `StepWords`, worked out by numpy for all chunks at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.triton.step_memory import LAST_TOKEN_OF_SEAT, NOBODY
from limelight.step import Chunk

Words = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepContent:
    """What a step brings beside patches.

    Attributes:
        parts: the filled beginnings of the parts of `StepWords`.
        num_drawn: [drawing chunks] rows that each draws from.
        sample_rows: as a list, for adapters.
        masked: rows of each masked chunk, by the chunk's number in the step.
        only_decodes: no chunk has more than one row.
    """

    parts: dict[str, Words]
    num_chunks: int
    num_rows: int
    num_sampled: int
    num_drawing: int
    num_drawn: Words
    masked: dict[int, int]
    only_decodes: bool


def content_of(chunks: Sequence[Chunk], seats: Words, starts: Words, lengths: Words, vocab_size: int) -> StepContent:
    """The content of at least one chunk.

    Args:
        seats, starts, lengths: [chunks], of the same chunks.

    Raises:
        ValueError: tokens, guesses or lengths contradict each other or the vocabulary.
    """
    num_chunks = len(chunks)
    only_decodes = int(lengths.max()) == 1
    ends = np.cumsum(lengths, dtype=np.int32)
    num_rows = int(ends[-1])
    draws = np.array([chunk.num_drafts + 1 if chunk.sample else 0 for chunk in chunks], np.int32)
    if int(lengths.min()) < 1 or bool((draws > lengths).any()):
        at = int(np.argmax((lengths < 1) | (draws > lengths)))
        raise ValueError(
            f"the chunk at seat {seats[at]} has {lengths[at]} rows and {chunks[at].num_drafts} guesses; it needs one "
            "row, and one more for each guess"
        )
    drawing = draws.nonzero()[0].astype(np.int32)
    drawn = draws[drawing]
    first = np.cumsum(drawn, dtype=np.int32) - drawn
    num_sampled = int(drawn.sum())
    owner = np.repeat(drawing, drawn)
    behind = np.repeat(first + drawn, drawn) - np.arange(num_sampled, dtype=np.int32) - 1
    masked, masks = _masks(chunks, owner, draws)
    return StepContent(
        parts={
            "chunk_seats": seats,
            "chunk_starts": starts,
            "query_starts": ends - lengths,
            "drawing_seats": seats[drawing],
            "drawing_first": first,
            "drawing_drafts": drawn - 1,
            "sample_rows": ends[owner] - 1 - behind,
            "sample_seats": seats[owner],
            "sample_positions": (starts + lengths)[owner] - behind,
            "sample_masks": masks,
            "token_ids": _token_ids(chunks, num_rows, vocab_size),
        },
        num_chunks=num_chunks,
        num_rows=num_rows,
        num_sampled=num_sampled,
        num_drawing=len(drawing),
        num_drawn=drawn,
        masked=masked,
        only_decodes=only_decodes,
    )


def _token_ids(chunks: Sequence[Chunk], num_rows: int, vocab_size: int) -> Words:
    flat: list[int] = []
    num_unknown = 0
    for chunk in chunks:
        token_ids = chunk.token_ids
        if token_ids is None:
            num_unknown += 1
            flat.append(LAST_TOKEN_OF_SEAT)
        else:
            flat += token_ids
            if len(token_ids) == chunk.num_tokens:
                continue
        if token_ids is not None or chunk.num_tokens != 1:
            num_given = 1 if token_ids is None else len(token_ids)
            raise ValueError(f"the chunk at seat {chunk.seat} has {num_given} token ids for {chunk.num_tokens} rows")
    try:
        values = np.array(flat, np.int32)
    except OverflowError:
        values = np.full(num_rows, vocab_size, np.int32)
    if num_unknown < num_rows and (
        int(values.max()) >= vocab_size or np.count_nonzero(values < 0) != num_unknown or int(values.min()) < -1
    ):
        wrong = next(
            (chunk.seat for chunk in chunks if chunk.token_ids and not _all_within(chunk.token_ids, vocab_size)), None
        )
        raise ValueError(f"the chunk at seat {wrong} has a token id that is none of the vocabulary's {vocab_size:,}")
    return values


def _all_within(token_ids: Sequence[int], vocab_size: int) -> bool:
    return min(token_ids) >= 0 and max(token_ids) < vocab_size


def _masks(chunks: Sequence[Chunk], owner: Words, draws: Words) -> tuple[dict[int, int], Words]:
    """Rows of each masked chunk, and for each sampled row its place among all masked ones, or NOBODY."""
    masks = np.full(len(owner), NOBODY, np.int32)
    masked = {number: int(draws[number]) for number, chunk in enumerate(chunks) if chunk.masked}
    if masked:
        is_masked = np.isin(owner, list(masked))
        masks[is_masked] = np.arange(np.count_nonzero(is_masked), dtype=np.int32)
    return masked, masks
