"""What one forward pass takes and gives. No torch: plain, frozen values that cross the thread boundary.

A running sequence sits in a *seat*, a row of the runner's table: page-table row, last token, sampling settings, token
counts. A step changes seats by deltas and nothing else. The order inside a step is: release, take, append pages, write
keys and values, attend, sample.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from limelight.generation import Pooling


class SeatSampling(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the sampling settings that the device needs; meanings as in `SamplingParams`.

    Attributes:
        seed: int64, always set. The noise for the token at position p is keyed by (seed, p), p being the token's
            index in the sequence (prompt included), so it is the same alone, in any batch and after preemption.
        num_logprobs: how many best tokens to report beside the drawn one, or None for no log-probabilities.
        logprob_token_ids: tokens whose log-probabilities are reported, too; only with `num_logprobs`.
        blocked_token_ids: never drawn while the drawn token's position is below `blocked_below_position`
            (end-of-sequence and stop tokens under `min_tokens`).
        logit_bias: added to the logits, after penalties.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    num_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] | None = None
    blocked_token_ids: tuple[int, ...] = ()
    blocked_below_position: int = 0

    @property
    def has_penalties(self) -> bool:
        """Whether token counts are needed."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


class SeatTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence sits down, fresh or again after a preemption. Everything that a previous tenant left is overwritten.

    Attributes:
        num_prompt_tokens: where the output begins.
        prompt_token_ids, output_token_ids: only filled when `sampling.has_penalties`; the counts start from them.
        adapter: id of the low-rank adapter that the sequence runs with, None for the base model alone.
    """

    seat: int
    sampling: SeatSampling
    num_prompt_tokens: int
    prompt_token_ids: tuple[int, ...] = ()
    output_token_ids: tuple[int, ...] = ()
    adapter: int | None = None


class Readout(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk reports of its own rows, beside the token that it may draw. May ask for nothing.

    Attributes:
        first_row: of the chunk; rows before it have been reported when they were computed before.
        next_token_ids: the token behind each of the rows from `first_row` on, to be scored by that row; may end early.
        num_logprobs: how many best tokens to report beside each of them.
        pooling: the hidden state of the chunk's last row, or the sum of those from `first_row` on; None: neither.
    """

    first_row: int = 0
    next_token_ids: tuple[int, ...] = ()
    num_logprobs: int = 0
    pooling: Pooling | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence's share of a step: tokens at positions `start` to `start + num_tokens - 1`.

    `start` may lie beyond the end of the seat's last chunk: the pages between were computed for others meanwhile and
    come with `new_pages`.

    Attributes:
        token_ids: the `num_tokens` input tokens, or None: exactly one token, the last one drawn for this seat, which
            the device reads from the seat (the host may not know it yet).
        new_pages: appended to the seat's page table before this chunk runs. The table then covers
            `start + num_tokens` slots. Leading pages may be shared with other seats and are then never written.
        sample: draw the next token (position `start + num_tokens`) from this chunk's last row.
        num_drafts: the last so many of `token_ids` are guesses (of a chunk that samples). A token is drawn from each of
            the last `num_drafts + 1` rows; the result holds them up to the first that differs from the guess after its
            row, that one included. Keys and values of wrong guesses stay behind in their slots and are overwritten.
        masked: for a chunk that samples, `StepExecutor.put_masks` says which tokens it may draw, while the pass runs.
        readout: what it reports of its rows; never with guesses.
    """

    seat: int
    start: int
    num_tokens: int
    token_ids: tuple[int, ...] | None
    new_pages: tuple[int, ...] = ()
    sample: bool = False
    num_drafts: int = 0
    masked: bool = False
    readout: Readout | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One forward pass over a batch of chunks, prefill and decode mixed. At most one chunk per seat.

    Attributes:
        number: rises by one per step.
        released: seats given up since the last step, processed before `taken` (a seat may be in both).
    """

    number: int
    chunks: tuple[Chunk, ...]
    taken: tuple[SeatTaken, ...] = ()
    released: tuple[int, ...] = ()


class SampledLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities at one position: of the token there and of the best ones, best first.

    Attributes:
        asked: of the seat's `logprob_token_ids`, in their order.
        rank: of a token that was scored, how many tokens are at least as likely; None for a drawn one.
    """

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    asked: tuple[float, ...] = ()
    rank: int | None = None


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """What one sampling chunk drew: one token and those of its guesses that were right before it (or none at all, from
    an executor that had to give up on the chunk). `logprobs` has one entry per token, or is None. And what a chunk with
    a readout, which need not sample, reports.

    Attributes:
        failure: why this chunk alone is lost, with its sequence: its logits are not finite, say, or a mask allows no
            token that may be drawn.
        scores: one entry per scored token of the readout.
        hidden: float32 [hidden size], as the readout's `pooling` asks; b"" without.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[SampledLogprobs, ...] | None = None
    failure: str | None = None
    scores: tuple[SampledLogprobs, ...] = ()
    hidden: bytes = b""


TokenMasks = Mapping[int, bytes]
"""By the number of a masked chunk in its step, for each of its sampled rows one after the other, the tokens that it may
draw: token t is bit t % 8 of byte t // 8, and a row takes whole words of four bytes."""

StepResult = tuple[Sampled | None, ...]
"""One entry per chunk of the step, in order; None where the chunk neither samples nor has a readout."""


class StepExecutor(Protocol):
    """Runs steps on a device. Owned by the model-runner actor; all calls but the wait come from its submit thread."""

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """Start the step and return a function that waits for its result (called on the completion thread).

        Steps run in the order of submission; step n+1 may be submitted before n has been waited for.

        Raises:
            Exception: anything raised here or by the returned function fails this step only.
        """
        ...

    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        """Let the step that was submitted last, which has masked chunks, draw. Called once for each such step, before
        another is submitted and before it is waited for; or not at all, when the step is given up.

        A chunk that is left out draws from all tokens: its sequence has ended, and nobody wants the token.

        Raises:
            Exception: as `submit`; the step has failed.
        """
        ...

    def close(self) -> None:
        """Give memory and threads back. Called once, after the last step."""
        ...


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model can hold: fixed for the engine's life.

    Attributes:
        num_pages, page_size: the KV pool; a page holds the keys and values of `page_size` tokens in all layers.
        num_seats: sequences that can run at once.
        max_num_batched_tokens: token budget of one step.
        max_model_len: context length in tokens, prompt and output.
        vocab_size: number of logits; valid token ids are below it.
    """

    num_pages: int
    page_size: int
    num_seats: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
