"""Logits -> tokens: gathers the settings of the rows from the seats, draws, writes the tokens back to the seats."""

from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.errors import StepFailure
from limelight.kernels.interface import Kernels, SampledTokens
from limelight.models.sampling_seats import SamplingSeats
from limelight.models.seats import Seats
from limelight.step import Chunk, Sampled, SampledLogprobs


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens of one step, still on the device.

    Attributes:
        num_logprobs: per sampled row, what its seat asked for.
        best_logits: [sampled], the largest logit of each row as the model gave it.
    """

    step_number: int
    tokens: SampledTokens
    num_logprobs: tuple[int | None, ...]
    best_logits: Tensor

    def read(self) -> list[Sampled]:
        """Wait for the device and bring the rows to the host, in chunk order.

        Raises:
            StepFailure: the model gave logits that are NaN or infinite.
        """
        if not bool(self.best_logits.isfinite().all()):
            raise StepFailure(
                f"the model gave logits that are not finite in step {self.step_number} (the best of each row: "
                f"{self.best_logits.tolist()}); its weights may be damaged, or their dtype too narrow"
            )
        token_ids = self.tokens.token_ids.tolist()
        if self.tokens.logprobs is None or self.tokens.top_logprobs is None or self.tokens.top_token_ids is None:
            return [Sampled((token_id,)) for token_id in token_ids]
        logprobs = self.tokens.logprobs.tolist()
        top_token_ids, top_logprobs = self.tokens.top_token_ids.tolist(), self.tokens.top_logprobs.tolist()
        return [
            Sampled((token_id,))
            if wanted is None
            else Sampled(
                (token_id,),
                (
                    SampledLogprobs(
                        logprobs[row], tuple(top_token_ids[row][:wanted]), tuple(top_logprobs[row][:wanted])
                    ),
                ),
            )
            for row, (token_id, wanted) in enumerate(zip(token_ids, self.num_logprobs, strict=True))
        ]


class Sampler:
    """Draws the tokens of a step."""

    def __init__(self, kernels: Kernels, seats: Seats, settings: SamplingSeats) -> None:
        self._kernels = kernels
        self._seats = seats
        self._settings = settings

    def draw(self, step_number: int, logits: Tensor, chunks: list[Chunk]) -> Drawn:
        """Draw one token per sampling chunk; `logits` [sampled, vocab] float32 are in their order."""
        seats = [chunk.seat for chunk in chunks]
        batch = self._settings.gather(seats, [chunk.start + chunk.num_tokens for chunk in chunks])
        best_logits = logits.amax(-1)
        tokens = self._kernels.sample(logits, batch)
        index = torch.tensor(seats, device=tokens.token_ids.device)
        self._seats.last_tokens.index_copy_(0, index, tokens.token_ids)
        self._settings.count_drawn(seats, tokens.token_ids)
        return Drawn(
            step_number=step_number,
            tokens=tokens,
            num_logprobs=tuple(self._settings.settings(seat).num_logprobs for seat in seats),
            best_logits=best_logits,
        )
