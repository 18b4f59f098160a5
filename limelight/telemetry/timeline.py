"""When things happened to one request: plain numbers that its actors write down, and everything else is read from.

Spans, histograms, `Server-Timing`, the live view and the log line of a request are all derived from its one timeline,
so they cannot contradict each other. Times are monotonic seconds (`time.monotonic`); `unix_ns` translates them.

A timeline belongs to the event loop. Each part is written by one actor: the request's own by the request actor, a
choice's by the scheduler, the delivery by whoever writes to the client. It keeps no content.
"""

import enum
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from opentelemetry import trace

from limelight.errors import LimelightError
from limelight.generation import ChatPrompt, FinishReason, GenerationRequest, SamplingParams
from limelight.quoting import encodable
from limelight.structured_outputs import StructuredOutputsParams

MAX_CHUNKS = 64
"""Chunks of a prompt that are kept one by one; what follows is counted into the last."""
MAX_INTERRUPTIONS = 60
"""With the chunks, the events of a span stay below 128, where SDKs with default limits begin to drop them."""


class Ending(enum.StrEnum):
    """How a request ended.

    `INVALID` can never work; `REJECTED` might, later or elsewhere; `EXPIRED` ran out of its time; `ABORTED` was not
    wanted any more; `FAILED` is the server's fault.
    """

    COMPLETED = "completed"
    ABORTED = "aborted"
    REJECTED = "rejected"
    EXPIRED = "expired"
    INVALID = "invalid"
    FAILED = "failed"


class Phase(enum.StrEnum):
    """Where a live request is."""

    TOKENIZING = "tokenizing"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


class PrefillChunk(NamedTuple):
    """A part of a prompt (or, after a preemption, of all known tokens) that one step computed.

    Attributes:
        planned_at, done_at: when the step was planned, and when its result was there.
        start, num_tokens: positions in the sequence.
    """

    step: int
    planned_at: float
    done_at: float
    start: int
    num_tokens: int


class InterruptionKind(enum.StrEnum):
    """What kept a sequence from its next token."""

    PREEMPTED = "preempted"
    RESUMED = "resumed"
    STALL = "stall"


class Interruption(NamedTuple):
    """One event between tokens.

    Attributes:
        at: for a stall, when the late token was there.
        step: the step that preempted, resumed, or brought the late token.
        seconds: how long the token took; 0 for other kinds.
    """

    kind: InterruptionKind
    at: float
    step: int
    seconds: float


@dataclass(slots=True, eq=False)
class ChoiceTimeline:
    """One choice, as the scheduler sees it.

    Attributes:
        scheduled_at: when the first step that carries it was planned.
        first_token_at, last_token_at: when the scheduler had the result. A choice without output has none.
        ended_at: when it gave up its seat for good, or left the queue.
        num_tokens: drawn.
        cached_tokens: prompt tokens taken from the prefix cache when it first ran.
        chunks: of the prompt, and of all known tokens after a preemption, in order, at most `MAX_CHUNKS`.
        num_chunks: all of them.
        interruptions: at most `MAX_INTERRUPTIONS`; the counts below are complete.
        step_seconds: its share of the time that steps took; those of a step's chunks sum to the step's time.
        num_pages: KV pages in its page table, shared ones counted by each holder.
        page_seconds: integral of that over time, until `pages_counted_at`.
        passed_over_at: since when it waits because it was the turn of another share; None: it does not.
        share_wait_seconds: that it has waited for that, until it sat down.
        finish_reason: as the scheduler saw it; a stop string is found later.
    """

    index: int
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    num_tokens: int = 0
    cached_tokens: int = 0
    chunks: list[PrefillChunk] = field(default_factory=list)
    num_chunks: int = 0
    interruptions: list[Interruption] = field(default_factory=list)
    num_preemptions: int = 0
    num_stalls: int = 0
    step_seconds: float = 0.0
    num_pages: int = 0
    page_seconds: float = 0.0
    pages_counted_at: float = 0.0
    passed_over_at: float | None = None
    share_wait_seconds: float = 0.0
    finish_reason: FinishReason | None = None

    def computed(self, chunk: PrefillChunk) -> None:
        """A part of the prompt is done."""
        self.num_chunks += 1
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(chunk)
        else:
            last = self.chunks[-1]
            self.chunks[-1] = last._replace(done_at=chunk.done_at, num_tokens=last.num_tokens + chunk.num_tokens)

    def holds(self, num_pages: int, at: float) -> None:
        """From `at` on its page table has `num_pages` entries."""
        self.page_seconds += self.num_pages * (at - self.pages_counted_at)
        self.pages_counted_at = at
        self.num_pages = num_pages

    def passed_over_until(self, at: float) -> None:
        """It does not wait for other shares any more, if it did."""
        if self.passed_over_at is not None:
            self.share_wait_seconds += at - self.passed_over_at
            self.passed_over_at = None

    def share_wait(self, at: float) -> float:
        """`share_wait_seconds` with what it waits at `at`."""
        return self.share_wait_seconds + (0.0 if self.passed_over_at is None else max(0.0, at - self.passed_over_at))

    def interrupted(self, kind: InterruptionKind, at: float, step: int, seconds: float = 0.0) -> None:
        """Something came between two tokens."""
        self.num_preemptions += kind is InterruptionKind.PREEMPTED
        self.num_stalls += kind is InterruptionKind.STALL
        if len(self.interruptions) < MAX_INTERRUPTIONS:
            self.interruptions.append(Interruption(kind, at, step, seconds))


@dataclass(slots=True, eq=False)
class Delivery:
    """How fast the client took what was written for it. Shared by the requests behind one HTTP request.

    Attributes:
        num_writes, num_bytes: parts handed to the socket.
        seconds, longest_seconds: that writes waited for the socket: back-pressure.
        waiting_since: of the write that waits now; None: none does.
    """

    num_writes: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0
    waiting_since: float | None = None

    def begin(self) -> float:
        """A write begins; give what this returns to `end`."""
        self.waiting_since = now = time.monotonic()
        return now

    def end(self, began_at: float, num_bytes: int) -> None:
        """The socket has taken it."""
        seconds = time.monotonic() - began_at
        self.waiting_since = None
        self.num_writes += 1
        self.num_bytes += num_bytes
        self.seconds += seconds
        if seconds > self.longest_seconds:
            self.longest_seconds = seconds


class RequestTimeline:
    """One request from the call to its end.

    Args:
        request: what is observed of it is copied; its content is not kept. Its names are those that everybody can
            write; admission refuses others.
        model: the name that the request was sent to: an adapter's, or the model's.
        arrived_at: monotonic seconds.

    Attributes:
        streams: whether the client reads the answer while it is made.
        first_chunk_at: when there was something to read.
        operation: `gen_ai.operation.name`: "chat", "text_completion" or "embeddings".
        adapter: name of the adapter that it asks for, loaded or not; None: the model itself.
        sampling: the settings, without what may be content (stop strings, structures, bias).
        unix_offset_ns: Unix nanoseconds at monotonic 0, fixed at arrival, so that all times of a request agree.
        admitted_at: when the engine took it.
        encoded_at: when the request had its token ids; `encode_seconds` of it on the tokenizer's thread.
        compiled_at: when it had its constraints, if it has any.
        submitted_at: when the scheduler was told.
        prompt_tokens: known when it is encoded.
        output_tokens: in the deltas so far, held back ones included; reasoning_tokens of them are known at the end.
        choices: `n` of them, from submission on.
        detokenize_seconds: making text of tokens, in all.
        delivery: how the client takes it, if somebody measures that.
        http_request_id: `x-request-id` of the HTTP request behind it.
        ended_at, ending, error: the end; `error` is None for a completed one, and has no traceback, which would keep
            the request.
        share: name of the one whose turn it takes.
        finish_reasons: of its choices, when it has completed.
        deadline: the limit of time that ended it, by its name; None: none did.
        steps_before, steps_after: seconds of all the engine's steps until it came, and until it had ended.
        span: leads to its OpenTelemetry span, for links and logs; writing to it does nothing.
        open_span: the span itself while it is open; nobody's but the tracing's, since a host's may raise.
        span_ids: hexadecimal span ids of those made of this timeline, by `SpanRecord.key`.
        parent_span_id: of the span above them, if there is one.
    """

    __slots__ = (
        "adapter",
        "admitted_at",
        "arrived_at",
        "cache_salted",
        "choices",
        "compiled_at",
        "deadline",
        "delivery",
        "detokenize_seconds",
        "encode_seconds",
        "encoded_at",
        "ended_at",
        "ending",
        "error",
        "finish_reasons",
        "first_chunk_at",
        "http_request_id",
        "model",
        "num_choices",
        "open_span",
        "operation",
        "output_tokens",
        "owner",
        "parent_span_id",
        "priority",
        "prompt_tokens",
        "reasoning_tokens",
        "request_id",
        "sampling",
        "share",
        "span",
        "span_ids",
        "steps_after",
        "steps_before",
        "streams",
        "submitted_at",
        "unix_offset_ns",
    )

    def __init__(self, request: GenerationRequest, model: str, arrived_at: float) -> None:
        self.request_id = encodable(request.request_id)
        self.http_request_id = None if request.http_request_id is None else encodable(request.http_request_id)
        self.owner = encodable(request.owner)
        self.share = self.owner if request.share is None else encodable(request.share.name)
        self.model = encodable(model)
        self.adapter = request.adapter
        self.priority = request.priority
        self.streams = request.streams
        self.cache_salted = request.cache_salt is not None
        self.operation = _operation(request)
        self.num_choices = request.sampling.n
        self.sampling = ObservedSampling.of(request.sampling)
        self.arrived_at = arrived_at
        self.unix_offset_ns = time.time_ns() - round(time.monotonic() * 1e9)
        self.admitted_at: float | None = None
        self.encoded_at: float | None = None
        self.encode_seconds = 0.0
        self.compiled_at: float | None = None
        self.submitted_at: float | None = None
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.reasoning_tokens = 0
        self.choices: list[ChoiceTimeline] = []
        self.detokenize_seconds = 0.0
        self.delivery: Delivery | None = None
        self.ended_at: float | None = None
        self.ending: Ending | None = None
        self.error: LimelightError | None = None
        self.finish_reasons: tuple[FinishReason, ...] = ()
        self.deadline: str | None = None
        self.first_chunk_at: float | None = None
        self.steps_before = 0.0
        self.steps_after = 0.0
        self.span: trace.Span = trace.INVALID_SPAN
        self.open_span: trace.Span | None = None
        self.span_ids: dict[str, str] = {}
        self.parent_span_id: str | None = None

    def submit(self, at: float) -> None:
        """The scheduler is told of all choices."""
        self.submitted_at = at
        self.choices = [ChoiceTimeline(index) for index in range(self.num_choices)]

    def count_pages(self, at: float) -> None:
        """Bring `page_seconds` of its choices up to `at`."""
        for choice in self.choices:
            choice.holds(choice.num_pages, at)

    def unix_ns(self, at: float) -> int:
        """Unix nanoseconds of a monotonic time."""
        return round(at * 1e9) + self.unix_offset_ns

    @property
    def phase(self) -> Phase:
        """Where it is now: with several choices, the furthest of them."""
        if self.ended_at is not None:
            return Phase.ENDED
        if self.submitted_at is None:
            return Phase.TOKENIZING
        if self.first_token_at is not None:
            return Phase.DECODE
        return Phase.QUEUED if self.scheduled_at is None else Phase.PREFILL

    @property
    def scheduled_at(self) -> float | None:
        """When the first of its choices was in a step."""
        return min((choice.scheduled_at for choice in self.choices if choice.scheduled_at is not None), default=None)

    @property
    def first_token_at(self) -> float | None:
        """When the first token of any choice was there."""
        times = (choice.first_token_at for choice in self.choices)
        return min((at for at in times if at is not None), default=None)

    @property
    def last_token_at(self) -> float | None:
        """When the last one was."""
        times = (choice.last_token_at for choice in self.choices)
        return max((at for at in times if at is not None), default=None)

    @property
    def step_seconds(self) -> float:
        """Its share of the time that steps took. The step in which it ends is added when that is through."""
        return sum([choice.step_seconds for choice in self.choices])

    def share_wait(self, at: float) -> float:
        """Seconds until `at` that it, or the choice that waited longest, gave way to other shares."""
        return max([choice.share_wait(at) for choice in self.choices], default=0.0)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the first choice took from the prefix cache."""
        return self.choices[0].cached_tokens if self.choices else 0


class ObservedSampling(NamedTuple):
    """Settings of a request that say nothing of its content.

    Attributes:
        output_type: `gen_ai.output.type`: "json" or "text" where the form of the output is given, else None.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    max_tokens: int | None
    seed: int | None
    num_stop_strings: int
    constrained: bool
    output_type: str | None

    @classmethod
    def of(cls, sampling: SamplingParams) -> "ObservedSampling":
        """What may be observed of `sampling`."""
        return cls(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            num_stop_strings=len(sampling.stop_strings),
            constrained=sampling.structured_outputs is not None,
            output_type=_output_type(sampling.structured_outputs),
        )


def _output_type(form: StructuredOutputsParams | None) -> str | None:
    if form is None:
        return None
    return "json" if form.kind in ("json", "json_object") else "text"


def _operation(request: GenerationRequest) -> str:
    if request.pooling is not None:
        return "embeddings"
    return "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"
