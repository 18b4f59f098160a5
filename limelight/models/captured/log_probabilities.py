"""Log-probabilities of drawn tokens and of the best ones, by torch on the device, and as the host reads them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.step import SampledLogprobs

Words = NDArray[np.int32]


class WantedLogprobs(NamedTuple):
    """What the rows of a step want.

    Attributes:
        num_best: the most best tokens of any row, within the vocabulary.
        asked: [rows, most asked] int32, tokens that are asked for, token 0 behind those of a row that has fewer.
    """

    num_best: int
    asked: Words

    @property
    def row_words(self) -> int:
        """Words of a row: its log-probability, those of the best tokens and of those asked for, the best ones' ids."""
        return 1 + 2 * self.num_best + int(self.asked.shape[1])


@torch.inference_mode()
def write_logprobs(logits: Tensor, token_ids: Tensor, num_best: int, asked: Tensor, target: Tensor) -> None:
    """Rows for the host, on the stream and without waiting.

    Args:
        logits: [rows, vocab] float32, as the model gave them.
        token_ids: [rows] int32, drawn.
        asked: [rows, most asked] int32, pinned.
        target: [rows * row_words] int32, pinned.
    """
    logprobs = logits.log_softmax(-1)
    best, best_ids = logprobs.topk(num_best, dim=-1)
    drawn = logprobs.gather(1, token_ids.long().unsqueeze(1))
    others = logprobs.gather(1, asked.to(logits.device, non_blocking=True).long())
    floats = torch.cat((drawn, best, others), 1).view(torch.int32)
    target.copy_(torch.cat((floats, best_ids.to(torch.int32)), 1).flatten(), non_blocking=True)


def read_logprobs(words: Words, wanted: WantedLogprobs) -> list[SampledLogprobs]:
    """What `write_logprobs` has written, by row."""
    table = words.reshape(-1, wanted.row_words)
    num_floats = wanted.row_words - wanted.num_best
    floats = table[:, :num_floats].copy().view(np.float32).tolist()
    ids = table[:, num_floats:].tolist()
    end = 1 + wanted.num_best
    return [
        SampledLogprobs(row[0], tuple(row_ids), tuple(row[1:end]), tuple(row[end:]))
        for row, row_ids in zip(floats, ids, strict=True)
    ]


def cut(row: SampledLogprobs, num_best: int, num_asked: int) -> SampledLogprobs:
    """As many of the best ones and of those asked for as a sequence wants."""
    return SampledLogprobs(
        row.logprob, row.top_token_ids[:num_best], row.top_logprobs[:num_best], row.asked[:num_asked]
    )
