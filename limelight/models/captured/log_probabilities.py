"""Log-probabilities of drawn tokens and of the best ones, by torch on the device, and as the host reads them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.step import SampledLogprobs

Words = NDArray[np.int32]


def row_words(num_best: int) -> int:
    """Words of a row: its log-probability, then those of the best tokens, then their ids."""
    return 1 + 2 * num_best


@torch.inference_mode()
def write_logprobs(logits: Tensor, token_ids: Tensor, num_best: int, target: Tensor) -> None:
    """Rows for the host, on the stream and without waiting.

    Args:
        logits: [rows, vocab] float32, as the model gave them.
        token_ids: [rows] int32, drawn.
        target: [rows * row_words(num_best)] int32, pinned.
    """
    logprobs = logits.log_softmax(-1)
    best, best_ids = logprobs.topk(num_best, dim=-1)
    drawn = logprobs.gather(1, token_ids.long().unsqueeze(1))
    floats = torch.cat((drawn, best), 1).view(torch.int32)
    target.copy_(torch.cat((floats, best_ids.to(torch.int32)), 1).flatten(), non_blocking=True)


def read_logprobs(words: Words, num_best: int) -> list[tuple[float, list[float], list[int]]]:
    """What `write_logprobs` has written: per row the drawn token's, the best ones, and their ids."""
    table = words.reshape(-1, row_words(num_best))
    floats = table[:, : 1 + num_best].copy().view(np.float32).tolist()
    ids = table[:, 1 + num_best :].tolist()
    return [(row[0], row[1:], row_ids) for row, row_ids in zip(floats, ids, strict=True)]


def cut(row: tuple[float, list[float], list[int]], wanted: int) -> SampledLogprobs:
    """As many of the best as a sequence wants."""
    logprob, best, best_ids = row
    return SampledLogprobs(logprob, tuple(best_ids[:wanted]), tuple(best[:wanted]))
