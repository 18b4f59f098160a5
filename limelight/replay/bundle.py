"""What is kept of one recorded request: a JSON file of which somebody else can run the same steps again.

It holds content, the prompt and the answer as token ids. Of the requests that shared its steps it has ids and lengths.
"""

from typing import Literal

import msgspec

from limelight.config import EngineConfig
from limelight.errors import InvalidRequest, LimelightError
from limelight.generation import FinishReason, ReasoningFormat, SamplingParams
from limelight.quoting import shorten
from limelight.step import Capacity

FORMAT: Literal["limelight-replay"] = "limelight-replay"
VERSION = 1
MAX_ROWS = 200_000
"""Rows of steps that are kept of one request: with 64 neighbours, the first 3,000 tokens or so."""
OWN = 0
"""`Row.request` of the recorded request itself."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A sequence's share of a step, as `Chunk`.

    Attributes:
        request: `OWN`, or the number of a neighbour, 1 being the first of `Bundle.neighbours`.
        drafts: the guesses at its end; of neighbours only their number counts.
    """

    request: int
    choice: int
    start: int
    num_tokens: int
    sample: bool
    masked: bool = False
    drafts: tuple[int, ...] = ()


class RecordedStep(msgspec.Struct, frozen=True, array_like=True):
    """One step in which the request took part, all its rows in order."""

    number: int
    rows: tuple[Row, ...]


EventKind = Literal["seated", "unseated", "failed"]


class Event(msgspec.Struct, frozen=True):
    """What scheduling did to a choice before, or with, step `step`.

    `seated` comes with its first step and after each preemption; `unseated` is a preemption, or a new start after
    another step failed; `failed` is a step that raised.
    """

    step: int
    kind: EventKind
    choice: int


class RecordedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice drew, to the token that ended it.

    Attributes:
        seed: of this choice.
        logprobs: of its tokens.
        finish_reason: None: the request ended without one.
    """

    seed: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    finish_details: str | None = None


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What ran, as far as tokens can depend on it.

    Attributes:
        digest: of the files' names, sizes, headers and of samples of what they hold; "" for a model without files.
        kernels: what computed: "cpu/avx2", "triton/cuda:0".
        precision: what numbers are kept and computed in, by part.
    """

    name: str
    digest: str = ""
    kernels: str = ""
    precision: dict[str, str | None] = {}


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request.

    Attributes:
        created: Unix seconds.
        sampling: with the seed that was used.
        error: code of the error that ended it; None: it finished, or was still fine when its reader left.
        cached_tokens: of the prompt, taken from the prefix cache.
        steps: in which it took part, in order.
        is_whole: `steps` has all of them; else only the first, up to `MAX_ROWS` rows.
        neighbours: request ids of the others in these steps.
        versions: of programs and libraries that took part.
        machine: processor and system.
        capacity: what the loaded model could hold.
    """

    format: Literal["limelight-replay"] = FORMAT
    version: int = VERSION
    id: str
    created: float
    request_id: str
    model: ModelIdentity
    versions: dict[str, str]
    machine: dict[str, str]
    config: EngineConfig
    capacity: Capacity
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...]
    reasoning: ReasoningFormat | None = None
    adapter: str | None = None
    priority: int = 0
    error: str | None = None
    cached_tokens: int = 0
    choices: tuple[RecordedChoice, ...]
    events: tuple[Event, ...]
    neighbours: tuple[str, ...]
    is_whole: bool = True
    steps: tuple[RecordedStep, ...]


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


def encode(bundle: Bundle) -> bytes:
    """The file's content."""
    return msgspec.json.encode(bundle)


def decode(content: bytes) -> Bundle:
    """What `encode` made.

    Raises:
        InvalidRequest: it is no replay bundle, one of another version, or damaged.
    """
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.format != FORMAT:
            raise InvalidRequest(f"this is no replay bundle: it does not say that its format is {FORMAT!r}")
        if head.version != VERSION:
            raise InvalidRequest(
                f"this replay bundle has version {head.version}, and this program reads version {VERSION}; "
                "use the version of limelight that wrote it"
            )
        bundle = msgspec.json.decode(content, type=Bundle)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"this is no replay bundle: {shorten(str(error), 300)}") from error
    except LimelightError as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"this replay bundle is damaged: {error.message}") from error
    _check(bundle)
    return bundle


def _check(bundle: Bundle) -> None:
    """Refuse numbers that contradict each other, so that whoever runs the steps need not look again."""
    tokens = (*bundle.prompt_token_ids, *(id_ for choice in bundle.choices for id_ in choice.token_ids))
    if tokens and not 0 <= min(tokens) <= max(tokens) < bundle.capacity.vocab_size:
        raise InvalidRequest("this replay bundle is damaged: it has token ids that its model has not")
    numbers = [step.number for step in bundle.steps]
    if numbers != sorted(set(numbers)):
        raise InvalidRequest("this replay bundle is damaged: its steps are not in order")
    for step in bundle.steps:
        for row in step.rows:
            is_known = 0 <= row.request <= len(bundle.neighbours)
            if not (is_known and row.start >= 0 and len(row.drafts) < row.num_tokens):
                raise InvalidRequest(f"this replay bundle is damaged: step {step.number} has an impossible row")
            if row.request == OWN and not 0 <= row.choice < len(bundle.choices):
                raise InvalidRequest(f"this replay bundle is damaged: step {step.number} has a choice that is missing")
