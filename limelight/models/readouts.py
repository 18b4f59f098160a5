"""What chunks report of their rows, by torch: scores of a prompt's tokens, and hidden states.

Rows are taken in slices of one chunk each: logits of more rows than a slice's never exist at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.generation import Pooling
from limelight.kernels.interface import Kernels, LowRank
from limelight.models.drawing import Report, not_finite
from limelight.models.forward_batch import Model
from limelight.models.lora.active_adapters import ActiveAdapter, ActiveAdapters
from limelight.models.lora.adapter_file import AdapterWeights
from limelight.step import Chunk, Readout, SampledLogprobs

ROWS_AT_ONCE = 64
"""Rows whose logits exist at once."""


class DeviceReport(NamedTuple):
    """The same, still on the device.

    Attributes:
        scores: of slice after slice, [rows, 3 + 2 * best tokens] float64: log-probability, rank, largest logit, best
            log-probabilities, their ids.
        hidden: [hidden size] float32, or None.
    """

    scores: Sequence[Tensor]
    hidden: Tensor | None

    def read(self, step_number: int) -> Report:
        """Wait for the device."""
        rows = [row for piece in self.scores for row in piece.tolist()]
        best_logits = [row[2] for row in rows]
        if not all(map(math.isfinite, best_logits)):
            return Report(failure=not_finite(step_number, [best for best in best_logits if not math.isfinite(best)]))
        scores = tuple([_score(row) for row in rows])
        if self.hidden is None:
            return Report(scores)
        if not bool(self.hidden.isfinite().all()):
            return Report(failure=not_finite(step_number, [math.nan]))
        return Report(scores, self.hidden.cpu().numpy().astype("<f4").tobytes())


def _score(row: Sequence[float]) -> SampledLogprobs:
    end = 3 + (len(row) - 3) // 2
    return SampledLogprobs(row[0], tuple(map(int, row[end:])), tuple(row[3:end]), rank=int(row[1]))


class Reading(NamedTuple):
    """What is read of one chunk.

    Attributes:
        start, end: its rows of the step, of which it reports something.
        first_target: where its `next_token_ids` begin among those of the step.
        products: of its adapter, or None.
    """

    readout: Readout
    start: int
    end: int
    first_target: int
    products: Mapping[str, LowRank] | None


@dataclass(frozen=True, slots=True)
class Readouts:
    """Those of a step that is run later: `reports` is filled then."""

    readings: Sequence[Reading]
    targets: Sequence[int]
    reports: list[DeviceReport] = field(default_factory=list)


def readings_of(
    chunks: Sequence[Chunk], adapter_of_seat: Sequence[int | None], weights: Mapping[int, AdapterWeights]
) -> tuple[list[Reading], list[int]]:
    """What is read of the chunks of a step, in order, and the tokens to be scored."""
    readings: list[Reading] = []
    targets: list[int] = []
    start = 0
    for chunk in chunks:
        end = start + chunk.num_tokens
        if (readout := chunk.readout) is not None:
            adapter = adapter_of_seat[chunk.seat]
            products = None if adapter is None else weights[adapter].products
            readings.append(Reading(readout, start + readout.first_row, end, len(targets), products))
            targets += readout.next_token_ids
        start = end
    return readings, targets


def read_rows(
    model: Model,
    kernels: Kernels,
    hidden: Tensor,
    residual: Tensor | None,
    readings: Sequence[Reading],
    targets: Tensor,
) -> list[DeviceReport]:
    """What the chunks with a readout report, in order. Waits for nothing.

    Args:
        hidden, residual: [tokens, hidden size], what the layers of the step gave; not changed.
        targets: [scored] int64, on the device.
    """

    def normed(start: int, end: int) -> Tensor:
        # Copies, because kernels may write the sum of both where one was.
        own = None if residual is None else residual[start:end].clone()
        rows: Tensor = model.normed(hidden[start:end].clone(), own, None)
        return rows

    reports = []
    for readout, start, end, first_target, products in readings:
        adapters = None if products is None else ActiveAdapters(kernels, [ActiveAdapter(None, products)])
        num_scored = len(readout.next_token_ids)
        scores = []
        for first in range(0, num_scored, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, num_scored)
            logits = model.project(normed(start + first, start + last), adapters)
            scores.append(scored(logits, targets[first_target + first : first_target + last], readout.num_logprobs))
        pooled: Tensor | None = None
        if readout.pooling is Pooling.LAST:
            pooled = normed(end - 1, end)[0].to(torch.float32)
        elif readout.pooling is Pooling.MEAN:
            pooled = normed(start, end).to(torch.float32).sum(0)
        reports.append(DeviceReport(scores, pooled))
    return reports


def scored(logits: Tensor, targets: Tensor, num_logprobs: int) -> Tensor:
    """A slice of `DeviceReport.scores`.

    Args:
        logits: [rows, vocab] float32.
        targets: [rows] int64.
        num_logprobs: how many best tokens; all, if the vocabulary is smaller.
    """
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, targets.unsqueeze(1))
    best, best_ids = logprobs.topk(min(num_logprobs, logits.shape[1]), dim=-1)
    ranks = (logprobs >= own).sum(1, keepdim=True)
    return torch.cat((own.double(), ranks, logits.amax(1, keepdim=True), best, best_ids), 1)
