"""The whole protocol on one page: every message, grouped by receiver. Frozen: a received message is never modified."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from limelight.actors.channel import Sender
from limelight.errors import LimelightError
from limelight.generation import (
    Deadlines,
    FinishReason,
    Pooling,
    Prompt,
    ReasoningFormat,
    SamplingParams,
    Share,
    Truncation,
)
from limelight.models.constraints.constraint import Constraint, Constraints
from limelight.models.loaded_model import AdapterWeights
from limelight.step import SampledLogprobs, Step, StepResult, TokenMasks
from limelight.telemetry.timeline import RequestTimeline

# ---- to the tokenizer


class Encode(msgspec.Struct, frozen=True):
    """Render and encode a prompt; answered by `Encoded` or `Failed`, exactly once.

    Attributes:
        truncation: cut a prompt that is too long; None: it is given whole, or refused if it is clearly too long.
        num_output_tokens: what a truncation without a number leaves room for, None: one token.
        with_offsets: say where in the text each token stands.
    """

    request_id: str
    prompt: Prompt
    reply_to: "Sender[ToRequest]"
    truncation: Truncation | None = None
    num_output_tokens: int | None = None
    with_offsets: bool = False


ToTokenizer = Encode

# ---- to the constraints


class Compile(msgspec.Struct, frozen=True, kw_only=True):
    """Compile what `sampling` allows of the output; answered by `Compiled` or `Failed`, exactly once.

    Attributes:
        marks: of the reasoning that comes before an answer, or None.
    """

    request_id: str
    sampling: SamplingParams
    marks: ReasoningFormat | None
    reply_to: "Sender[ToRequest]"


class MaskRow(msgspec.Struct, frozen=True):
    """A masked chunk of a step.

    Attributes:
        chunk: its number in the step.
        constraint: of its choice; used by whoever makes masks, and by nobody else.
        token_ids: drawn since the last mask was asked for.
    """

    chunk: int
    constraint: Constraint
    token_ids: tuple[int, ...]
    request_id: str


class MakeMasks(msgspec.Struct, frozen=True):
    """Tell the runner the `Masks` of step `number`: told when all steps before it have been applied."""

    number: int
    rows: tuple[MaskRow, ...]


ToConstraints = Compile | MakeMasks

# ---- to the scheduler


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """Generate `sampling.n` choices; each is answered by `Generated` until it finishes, or all by one `Failed`.

    Attributes:
        token_ids: the prompt, at least one token, all below the vocabulary size.
        sampling: with `seed` set. Choice i draws with seed `choice_seed(seed, i)`.
        stop_token_ids: every id that ends a choice (the model's own unless `ignore_eos`, and the request's).
        adapter: id of the loaded adapter to run with, or None.
        constraints: what the output may be, beyond the sampling; each choice follows them for itself.
        timeline: the scheduler writes down what happens to its choices.
        pooling: read hidden states of the prompt instead of drawing tokens.
        share: whose turn it takes, and on whose quota it draws.
        deadlines: refused at once if they cannot be kept by far.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    priority: int
    cache_salt: str | None
    adapter: int | None
    owner: str
    share: Share
    timeline: RequestTimeline
    reply_to: "Sender[ToRequest]"
    pooling: Pooling | None = None
    constraints: Constraints | None = None
    deadlines: Deadlines | None = None


class Cancel(msgspec.Struct, frozen=True):
    """Forget a request, or one choice of it. Idempotent; unknown ids are ignored; nothing is answered."""

    request_id: str
    index: int | None = None


class StepTimes(NamedTuple):
    """When the runner's threads had to do with a step, in monotonic seconds.

    Attributes:
        started_at: when the executor was given it.
        submitted_at: when the executor had taken it.
        masked_at: when it had its masks, too; `submitted_at` again for a step without.
        ended_at: when the result was there.
    """

    started_at: float
    submitted_at: float
    masked_at: float
    ended_at: float


class StepDone(msgspec.Struct, frozen=True):
    """Step `number` is through."""

    number: int
    result: StepResult
    times: StepTimes


class StepFailed(msgspec.Struct, frozen=True):
    """Step `number` raised. The device's state of its sequences is undefined; everybody else's is untouched."""

    number: int
    error: Exception
    times: StepTimes


class ConstraintFailed(msgspec.Struct, frozen=True):
    """No mask can be made for a request any more; told before the `Masks` that leave its choice out."""

    request_id: str
    error: LimelightError


class DeliveryDue(msgspec.Struct, frozen=True):
    """From the scheduler's own timer: the requests may hear of their tokens."""


ToScheduler = Submit | Cancel | StepDone | StepFailed | ConstraintFailed | DeliveryDue

# ---- to the model runner


class DeviceLost(msgspec.Struct, frozen=True):
    """From the runner's own threads: no later step can succeed."""

    error: BaseException


class Masks(msgspec.Struct, frozen=True):
    """What the masked chunks of step `number` may draw, or why that cannot be said, which fails the step.

    Each step with masked chunks gets exactly one, before or after it was told, whatever has become of its sequences:
    those that have ended are left out. Later steps wait for it.
    """

    number: int
    masks: TokenMasks | Exception


class PutAdapter(msgspec.Struct, frozen=True):
    """Let later steps use an adapter. `answer` is called on the loop, once, with the error or None."""

    adapter: int
    weights: AdapterWeights
    answer: Callable[[Exception | None], None]


class DropAdapter(msgspec.Struct, frozen=True):
    """Forget an adapter that no later step uses. `answer` as for `PutAdapter`, when its memory is free."""

    adapter: int
    answer: Callable[[Exception | None], None]


ToModelRunner = Step | Masks | DeviceLost | PutAdapter | DropAdapter

# ---- to a request


class Encoded(msgspec.Struct, frozen=True):
    """Token ids of the prompt; `text` is the rendered prompt, None for a token-id prompt.

    Attributes:
        offsets: start and end of each token in `text`, in characters; None unless asked for and known.
        seconds: that it took on the thread.
    """

    token_ids: tuple[int, ...]
    text: str | None
    offsets: tuple[tuple[int, int], ...] | None = None
    seconds: float = 0.0


class Compiled(msgspec.Struct, frozen=True):
    """What the output may be."""

    constraints: Constraints


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens drawn for choice `index` since the last message.

    Attributes:
        logprobs: one entry per token, or None.
        finish_reason: set on the last message of a choice.
        stop_token_id: the stop token that ended it; it is the last of `token_ids`.
        cached_tokens: prompt tokens taken from the prefix cache.
        num_drafts, num_accepted: tokens guessed for this message, and those of them that were right.
        scores: of the prompt's tokens from the second on, with the first message of choice 0; None unless asked for.
        hidden: as `Sampled.hidden`, of one chunk after the other, with the only message; None unless asked for.
    """

    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[SampledLogprobs, ...] | None
    finish_reason: FinishReason | None
    stop_token_id: int | None
    finish_details: str | None
    cached_tokens: int
    num_drafts: int = 0
    num_accepted: int = 0
    scores: tuple[SampledLogprobs, ...] | None = None
    hidden: tuple[bytes, ...] | None = None


class Failed(msgspec.Struct, frozen=True):
    """The request has ended with an error; nothing follows."""

    error: LimelightError


ToRequest = Encoded | Compiled | Generated | Failed


def choice_seed(seed: int, index: int) -> int:
    """Seed of choice `index`: distinct noise per choice, the first one equal to the request's own seed (int64)."""
    return (seed + index * 0x9E3779B97F4A7C15 + 2**63) % 2**64 - 2**63
