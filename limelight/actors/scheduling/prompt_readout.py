"""What a sequence wants to know of its prompt's rows, beside the tokens drawn behind it: scores, or hidden states.

Every row is reported once: a row that is computed again after a preemption is left out then, and rows that have not
been reported are never taken from the prefix cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from limelight.generation import Pooling
from limelight.step import Readout, Sampled, SampledLogprobs


@dataclass(slots=True)
class PromptReadout:
    """Owned by a sequence until its results are complete.

    Attributes:
        num_prompt_tokens: of the sequence.
        num_logprobs: score each token of the prompt but the first, with so many best ones; None: score none.
        pooling: read hidden states; None: read none.
        draws: whether the sequence goes on behind its prompt.
        num_planned: leading rows that are reported, or will be when the steps in flight are through.
        num_reported: those of them whose results are here.
        scores: of the prompt's tokens from the second on.
        hidden: of chunk after chunk, as `Sampled.hidden`.
    """

    num_prompt_tokens: int
    num_logprobs: int | None = None
    pooling: Pooling | None = None
    draws: bool = True
    num_planned: int = field(init=False, default=0)
    num_reported: int = field(init=False, default=0)
    scores: list[SampledLogprobs] = field(init=False, default_factory=list)
    hidden: list[bytes] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.num_logprobs is None and self.pooling is not Pooling.MEAN:
            self.num_planned = self.num_reported = self.num_prompt_tokens - 1  # the rows before the last do not matter

    @property
    def num_cacheable_tokens(self) -> int:
        """Leading tokens that may come from the prefix cache."""
        return self.num_planned

    def plan(self, token_ids: Sequence[int], start: int, num_tokens: int) -> Readout | None:
        """What a chunk of the sequence reports; None for nothing.

        Where nothing is drawn, the chunk that ends the prompt always has one, so that the end is heard of.
        """
        end = min(start + num_tokens, self.num_prompt_tokens)
        if end <= self.num_planned and (self.draws or end < self.num_prompt_tokens):
            return None
        first = max(start, self.num_planned)
        self.num_planned = max(self.num_planned, end)
        next_token_ids: tuple[int, ...] = ()
        if self.num_logprobs is not None:
            next_token_ids = tuple(token_ids[first + 1 : min(end + 1, self.num_prompt_tokens)])
        return Readout(
            first_row=min(first - start, num_tokens),
            next_token_ids=next_token_ids,
            num_logprobs=self.num_logprobs or 0,
            pooling=self.pooling if first < end else None,
        )

    def take(self, end: int, sampled: Sampled) -> None:
        """Keep what the chunk whose rows end before position `end` has reported."""
        self.num_reported = min(end, self.num_prompt_tokens)
        self.scores += sampled.scores
        if sampled.hidden:
            self.hidden.append(sampled.hidden)

    def forget_planned(self) -> None:
        """Nothing in flight counts any more."""
        self.num_planned = self.num_reported
