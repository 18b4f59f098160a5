"""Masks of the tokens that rows may draw, from the bits in which they cross threads."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from limelight.step import Chunk, TokenMasks

WORD_BYTES = 4


def mask_bytes(vocab_size: int) -> int:
    """Bytes of a row's mask: a bit per token, in whole words."""
    return -(-vocab_size // (8 * WORD_BYTES)) * WORD_BYTES


def allowed_tokens(chunks: Sequence[Chunk], masks: TokenMasks, vocab_size: int) -> NDArray[np.bool_]:
    """[sampled, vocab], for all rows of a step that draw.

    Raises:
        ValueError: a mask has another size than its rows need.
    """
    width, rows = mask_bytes(vocab_size), []
    for number, chunk in enumerate(chunks):
        if not chunk.sample:
            continue
        num_rows = chunk.num_drafts + 1
        mask = masks.get(number) if chunk.masked else None
        if mask is None:
            rows.append(np.ones((num_rows, vocab_size), np.bool_))
            continue
        check_mask(number, mask, num_rows * width)
        bits = np.frombuffer(mask, np.uint8).reshape(num_rows, width)
        rows.append(np.unpackbits(bits, axis=1, count=vocab_size, bitorder="little").view(np.bool_))
    return np.concatenate(rows)


def check_mask(number: int, mask: bytes, size: int) -> None:
    """Raises ValueError if the mask of chunk `number` has another size than its rows need."""
    if len(mask) != size:
        raise ValueError(f"the mask of chunk {number} has {len(mask):,} bytes; it needs {size:,}")
