"""A step that has been submitted, and its result once the device is through."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from limelight.models.captured.log_probabilities import WantedLogprobs, cut, read_logprobs
from limelight.models.captured.slots import Slot
from limelight.models.captured.step_content import StepContent
from limelight.models.drawing import not_finite, nothing_allowed, with_reports
from limelight.models.readouts import Readouts
from limelight.step import Sampled, Step, StepResult


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the chunks that draw are owed.

    Attributes:
        num_logprobs, num_asked: per such chunk what its seat asked for.
        logprobs: what all rows get; None if no seat asked.
        refused: per such chunk why its sequence cannot be served, or None.
    """

    num_logprobs: Sequence[int | None]
    num_asked: Sequence[int]
    logprobs: WantedLogprobs | None
    refused: Sequence[str | None]


class PendingStep:
    """Reads the result of a step from its slot, once, before the slot is used again.

    Whoever needs it first waits: the completion thread for the result, or the submit thread for the slot.
    """

    def __init__(self, step: Step, content: StepContent, slot: Slot, wanted: Wanted, readouts: Readouts | None) -> None:
        self._step = step
        self._content = content
        self._slot = slot
        self._wanted = wanted
        self._readouts = readouts
        self._lock = threading.Lock()
        self._result: StepResult | None = None
        self._error: Exception | None = None

    def result(self) -> StepResult:
        """Wait for the device; the result of the step.

        Raises:
            EngineFailed: the device has failed for good.
        """
        self.collect()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def give_up(self) -> None:
        """The step will not be drawn."""
        with self._lock:
            self._error = RuntimeError(f"step {self._step.number} was given up while its masks were missing")

    def collect(self) -> None:
        """Wait for the device and keep the result, or the error."""
        with self._lock:
            if self._result is not None or self._error is not None:
                return
            try:
                self._slot.event.wait()
                self._result = self._read()
            except Exception as error:  # noqa: BLE001 - raised where the result is asked for
                self._error = error
            self._slot.kept = None

    def _read(self) -> StepResult:
        chunks, sampled = self._step.chunks, self._drawn()
        if self._readouts is not None:
            return with_reports(chunks, sampled, [report.read(self._step.number) for report in self._readouts.reports])
        drawn = iter(sampled)
        return tuple([next(drawn) if chunk.sample else None for chunk in chunks])

    def _drawn(self) -> list[Sampled]:
        content, wanted, num_sampled = self._content, self._wanted, self._content.num_sampled
        if not num_sampled:
            return []
        token_ids = self._slot.drawn.token_ids[:num_sampled].tolist()
        best_logits = self._slot.drawn.best_logits[:num_sampled].numpy()
        best_scores = self._slot.drawn.best_scores[:num_sampled].numpy()
        if (
            num_sampled == content.num_drawing
            and wanted.logprobs is None
            and not any(wanted.refused)
            and np.isfinite(best_logits).all()
            and not (content.masked and np.isneginf(best_scores).any())
        ):
            return [Sampled((token_id,)) for token_id in token_ids]
        return self._drawn_with_all(token_ids, best_logits.tolist(), best_scores.tolist())

    def _drawn_with_all(
        self, token_ids: list[int], best_logits: list[float], best_scores: list[float]
    ) -> list[Sampled]:
        """With guesses, log-probabilities and failures.

        A chunk with a row whose logits are NaN or infinite is a failure of its own: an adapter with enormous weights,
        or a prompt that overflows a narrow dtype, is no matter of the other rows. So is a masked one that has a row
        without a token to draw.
        """
        content, wanted, step_number = self._content, self._wanted, self._step.number
        masked = [chunk.masked for chunk in self._step.chunks if chunk.sample]
        accepted = self._slot.drawn.num_accepted[: content.num_drawing].tolist()
        logprobs = []
        if wanted.logprobs is not None:
            num_words = content.num_sampled * wanted.logprobs.row_words
            logprobs = read_logprobs(self._slot.logprobs.get(num_words).numpy(), wanted.logprobs)
        sampled, first = [], 0
        for num_rows, is_masked, num_right, num_best, num_asked, refused in zip(
            content.num_drawn.tolist(),
            masked,
            accepted,
            wanted.num_logprobs,
            wanted.num_asked,
            wanted.refused,
            strict=True,
        ):
            end = first + num_right + 1
            if refused is not None:
                sampled.append(Sampled((), failure=refused))
            elif not np.isfinite(best_logits[first:end]).all():
                sampled.append(Sampled((), failure=not_finite(step_number, best_logits[first:end])))
            elif is_masked and -math.inf in best_scores[first:end]:
                sampled.append(Sampled((), failure=nothing_allowed(step_number)))
            elif num_best is None:
                sampled.append(Sampled(tuple(token_ids[first:end])))
            else:
                rows = tuple([cut(row, num_best, num_asked) for row in logprobs[first:end]])
                sampled.append(Sampled(tuple(token_ids[first:end]), rows))
            first += num_rows
        return sampled
