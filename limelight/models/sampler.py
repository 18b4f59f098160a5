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
        asked: [sampled, most asked] float32, log-probabilities of the seats' `logprob_token_ids`, and as many of others
            behind them as the longest list has; None if no seat asked.
        num_asked: per sampling chunk, how many tokens its seat asked for.
        best_logits: [sampled], the largest logit of each row as the model gave it.
    """

    step_number: int
    tokens: SampledTokens
    num_rows: tuple[int, ...]
    masked: tuple[bool, ...]
    num_accepted: Tensor | None
    num_logprobs: tuple[int | None, ...]
    asked: Tensor | None
    num_asked: tuple[int, ...]
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
        for num_rows, masked, num_right, wanted, num_asked in zip(
            self.num_rows, self.masked, accepted, self.num_logprobs, self.num_asked, strict=True
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
            kept = (
                None
                if wanted is None or logprobs is None
                else [_cut(row, wanted, num_asked) for row in logprobs[first:end]]
            )
            sampled.append(Sampled(tuple(token_ids[first:end]), None if kept is None else tuple(kept)))
            first += num_rows
        return sampled

    def _logprobs(self) -> list[SampledLogprobs] | None:
        """Of all rows, with as many best tokens as any row wants."""
        tokens = self.tokens
        if tokens.logprobs is None or tokens.top_logprobs is None or tokens.top_token_ids is None:
            return None
        own = tokens.logprobs.tolist()
        asked = [()] * len(own) if self.asked is None else self.asked.tolist()
        return [
            SampledLogprobs(logprob, tuple(top_ids), tuple(top), tuple(others))
            for logprob, top_ids, top, others in zip(
                own, tokens.top_token_ids.tolist(), tokens.top_logprobs.tolist(), asked, strict=True
            )
        ]


def _cut(row: SampledLogprobs, wanted: int, num_asked: int) -> SampledLogprobs:
    return SampledLogprobs(row.logprob, row.top_token_ids[:wanted], row.top_logprobs[:wanted], row.asked[:num_asked])


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
        asked = self._asked(logits, seats_of_rows)
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
            asked=asked,
            num_asked=tuple(len(self._settings.settings(seat).logprob_token_ids) for seat in seats),
            best_logits=best_logits,
        )

    def _asked(self, logits: Tensor, seats: Sequence[int]) -> Tensor | None:
        """See `Drawn`."""
        lists = [self._settings.settings(seat).logprob_token_ids for seat in seats]
        if not any(lists):
            return None
        return asked_logprobs(logits, torch.tensor(padded(lists), device=logits.device))


def padded(lists: Sequence[Sequence[int]]) -> list[list[int]]:
    """Lists of one length: token 0 stands where one has no more."""
    most = max(map(len, lists))
    return [[*token_ids, *[0] * (most - len(token_ids))] for token_ids in lists]


def asked_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probabilities [rows, asked] of some tokens of each row."""
    return logits.gather(1, token_ids) - logits.logsumexp(-1, keepdim=True)


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
