"""Logits -> tokens: gathers the settings of the rows from the seats, draws, writes the tokens back to the seats.

Guesses (a chunk's `num_drafts`) are checked by drawing from their rows, too, with the settings and the noise of their
own positions, and keeping what agrees. So a sequence draws the same tokens with guesses and without, greedy or not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from limelight.kernels.interface import Kernels, SampledTokens
from limelight.models.drawing import not_finite, nothing_allowed
from limelight.models.sampling_seats import SamplingSeats
from limelight.models.seats import Seats
from limelight.step import Chunk, Sampled, SampledLogprobs

NO_TOKEN = -1
"""Stands where a chunk has no guess; no drawn token equals it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens of one step, still on the device.

    Attributes:
        num_rows: per sampling chunk, the rows that it draws from: one, and one more per guess.
        masked: per sampling chunk, whether it has masks.
        num_accepted: [chunks] int64, leading guesses that agree with what was drawn; None if there were no guesses.
        num_logprobs: per sampling chunk, what its seat asked for.
        best_logits: [sampled], the largest logit of each row as the model gave it.
    """

    step_number: int
    tokens: SampledTokens
    num_rows: tuple[int, ...]
    masked: tuple[bool, ...]
    num_accepted: Tensor | None
    num_logprobs: tuple[int | None, ...]
    best_logits: Tensor

    def read(self) -> list[Sampled]:
        """Wait for the device and bring the rows to the host, in chunk order.

        A chunk with a row whose logits are NaN or infinite is a failure of its own: an adapter with enormous weights,
        or a prompt that overflows a narrow dtype, is no matter of the other rows. So is a masked one that has a row
        without a token to draw.
        """
        best_logits = self.best_logits.tolist()
        token_ids = self.tokens.token_ids.tolist()
        accepted = [0] * len(self.num_rows) if self.num_accepted is None else self.num_accepted.tolist()
        best_scores = best_logits if self.tokens.best_scores is None else self.tokens.best_scores.tolist()
        logprobs = self._logprobs()
        sampled, first = [], 0
        for num_rows, masked, num_right, wanted in zip(
            self.num_rows, self.masked, accepted, self.num_logprobs, strict=True
        ):
            end = first + num_right + 1
            failure = None
            if not all(map(math.isfinite, best_logits[first:end])):
                failure = not_finite(self.step_number, best_logits[first:end])
            elif masked and -math.inf in best_scores[first:end]:
                failure = nothing_allowed(self.step_number)
            if failure is not None:
                sampled.append(Sampled((), failure=failure))
                first += num_rows
                continue
            kept = None if wanted is None or logprobs is None else [_cut(row, wanted) for row in logprobs[first:end]]
            sampled.append(Sampled(tuple(token_ids[first:end]), None if kept is None else tuple(kept)))
            first += num_rows
        return sampled

    def _logprobs(self) -> list[SampledLogprobs] | None:
        """Of all rows, with as many best tokens as any row wants."""
        tokens = self.tokens
        if tokens.logprobs is None or tokens.top_logprobs is None or tokens.top_token_ids is None:
            return None
        return [
            SampledLogprobs(logprob, tuple(top_ids), tuple(top))
            for logprob, top_ids, top in zip(
                tokens.logprobs.tolist(), tokens.top_token_ids.tolist(), tokens.top_logprobs.tolist(), strict=True
            )
        ]


def _cut(row: SampledLogprobs, wanted: int) -> SampledLogprobs:
    return SampledLogprobs(row.logprob, row.top_token_ids[:wanted], row.top_logprobs[:wanted])


class Sampler:
    """Draws the tokens of a step."""

    def __init__(self, kernels: Kernels, seats: Seats, settings: SamplingSeats) -> None:
        self._kernels = kernels
        self._seats = seats
        self._settings = settings

    def draw(self, step_number: int, logits: Tensor, chunks: Sequence[Chunk], allowed: Tensor | None = None) -> Drawn:
        """Draw one token per sampling chunk and guess; `logits` [sampled, vocab] float32 are in their order.

        Args:
            allowed: [sampled, vocab] bool, tokens that a row may draw; None: all.
        """
        rows = [
            (chunk.seat, chunk.start + chunk.num_tokens - behind)
            for chunk in chunks
            for behind in range(chunk.num_drafts, -1, -1)
        ]
        seats_of_rows = [seat for seat, _ in rows]
        batch = self._settings.gather(seats_of_rows, [position for _, position in rows])
        batch = msgspec.structs.replace(batch, allowed=allowed)
        best_logits = logits.amax(-1)
        tokens = self._kernels.sample(logits, batch)
        seats = [chunk.seat for chunk in chunks]
        if len(rows) == len(chunks):
            last, num_accepted = tokens.token_ids, None
        else:
            last, num_accepted = _accept(tokens.token_ids, chunks)
        self._seats.last_tokens.index_copy_(0, torch.tensor(seats, device=last.device), last)
        self._settings.count_drawn(seats_of_rows, tokens.token_ids)
        return Drawn(
            step_number=step_number,
            tokens=tokens,
            num_rows=tuple(chunk.num_drafts + 1 for chunk in chunks),
            masked=tuple(chunk.masked for chunk in chunks),
            num_accepted=num_accepted,
            num_logprobs=tuple(self._settings.settings(seat).num_logprobs for seat in seats),
            best_logits=best_logits,
        )


def _accept(token_ids: Tensor, chunks: Sequence[Chunk]) -> tuple[Tensor, Tensor]:
    """How far each chunk's guesses agree with what was drawn, and the last token that counts: both [chunks] int64.

    Args:
        token_ids: [sampled] int64, drawn after the last known token and after each guess of each chunk.
    """
    width = max(chunk.num_drafts for chunk in chunks) + 1
    rows: list[list[int]] = []
    drafts: list[list[int]] = []
    first = 0
    for chunk in chunks:
        num_padding = width - 1 - chunk.num_drafts
        end = first + chunk.num_drafts
        rows.append([*range(first, end + 1), *[end] * num_padding])
        guessed = chunk.token_ids[-chunk.num_drafts :] if chunk.token_ids and chunk.num_drafts else ()
        drafts.append([*guessed, *[NO_TOKEN] * num_padding])
        first = end + 1
    drawn = token_ids[torch.tensor(rows, device=token_ids.device)]
    agrees = drawn[:, :-1] == torch.tensor(drafts, device=token_ids.device)
    num_accepted = agrees.to(torch.int64).cumprod(1).sum(1)
    return drawn.gather(1, num_accepted.unsqueeze(1)).squeeze(1), num_accepted
