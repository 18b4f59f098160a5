"""What is written down of recorded requests while they run: their tokens, and the steps that they took part in.

A request that is not recorded costs a look at an empty dictionary per step.
"""

import time
from collections.abc import Sequence as Items

from limelight.actors.messages import Generated, choice_seed
from limelight.actors.scheduling.in_flight import PlannedChunk
from limelight.actors.scheduling.sequence import Sequence
from limelight.generation import Completion, GenerationRequest
from limelight.replay.bundle import MAX_ROWS, OWN, Event, EventKind, RecordedChoice, RecordedStep, Row


class RequestRecorder:
    """One recorded request, on the event loop; when it has ended, whoever makes the bundle reads it on a thread.

    Args:
        request: with `record_id` and `sampling.seed` set.

    Attributes:
        prompt_token_ids, stop_token_ids: known when it is submitted.
        error: code of the error that ended it, or None.
        is_whole: no step was left out.
        created: Unix seconds.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.prompt_token_ids: tuple[int, ...] = ()
        self.stop_token_ids: tuple[int, ...] = ()
        self.error: str | None = None
        self.cached_tokens = 0
        self.steps: list[RecordedStep] = []
        self.events: list[Event] = []
        self.is_whole = True
        self.created = time.time()
        self._num_rows = 0
        self._neighbours: dict[str, int] = {}
        self._token_ids: list[list[int]] = [[] for _ in range(request.sampling.n)]
        self._logprobs: list[list[float]] = [[] for _ in range(request.sampling.n)]
        self._completions: tuple[Completion, ...] = ()

    # ---- from the request actor

    def submitted(self, prompt_token_ids: tuple[int, ...], stop_token_ids: frozenset[int]) -> None:
        """The prompt is encoded."""
        self.prompt_token_ids = prompt_token_ids
        self.stop_token_ids = tuple(sorted(stop_token_ids))

    def drew(self, generated: Generated, num_tokens: int) -> None:
        """The first `num_tokens` of what was drawn are the choice's; what lies behind a stop string is not."""
        self._token_ids[generated.index].extend(generated.token_ids[:num_tokens])
        if generated.logprobs is not None:
            self._logprobs[generated.index].extend([entry.logprob for entry in generated.logprobs[:num_tokens]])

    def ended(self, completions: tuple[Completion, ...], error: str | None, cached_tokens: int) -> None:
        """Nothing follows."""
        self._completions, self.error, self.cached_tokens = completions, error, cached_tokens

    # ---- from scheduling

    def planned(self, number: int, chunks: Items[PlannedChunk]) -> None:
        """It takes part in step `number`."""
        if self._num_rows + len(chunks) > MAX_ROWS:
            self.is_whole = False
        if self.is_whole:
            self._num_rows += len(chunks)
            self.steps.append(RecordedStep(number, tuple([self._row(chunk) for chunk in chunks])))

    def happened(self, kind: EventKind, step: int, choice: int) -> None:
        """See `Event`."""
        if self.is_whole:
            self.events.append(Event(step, kind, choice))

    # ---- for the bundle

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Ids of the other requests in its steps, in the order of their numbers."""
        return tuple(self._neighbours)

    def choices(self) -> tuple[RecordedChoice, ...]:
        """What each choice drew."""
        seed = self.request.sampling.seed
        assert seed is not None, "the engine seeds every request"
        ends = {completion.index: completion for completion in self._completions}
        return tuple(
            RecordedChoice(
                seed=choice_seed(seed, index),
                token_ids=tuple(token_ids),
                logprobs=tuple(logprobs),
                finish_reason=ends[index].finish_reason if index in ends else None,
                stop_reason=ends[index].stop_reason if index in ends else None,
                finish_details=ends[index].finish_details if index in ends else None,
            )
            for index, (token_ids, logprobs) in enumerate(zip(self._token_ids, self._logprobs, strict=True))
        )

    def _row(self, chunk: PlannedChunk) -> Row:
        sequence = chunk.sequence
        is_own = sequence.request_id == self.request.request_id
        number = OWN if is_own else self._neighbours.setdefault(sequence.request_id, len(self._neighbours) + 1)
        return Row(
            request=number,
            choice=sequence.index,
            start=chunk.start,
            num_tokens=chunk.num_tokens,
            sample=chunk.sample,
            masked=chunk.sample and sequence.constraint is not None,
            drafts=chunk.drafts if is_own else (0,) * len(chunk.drafts),
        )


class ScheduleRecorder:
    """Tells the recorders of what scheduling does; the step ledger tells it.

    Attributes:
        recorders: of the live requests that are recorded, by request id.
    """

    def __init__(self) -> None:
        self.recorders: dict[str, RequestRecorder] = {}

    def planned(self, number: int, chunks: Items[PlannedChunk]) -> None:
        """Step `number` is planned."""
        taking_part = {chunk.sequence.request_id for chunk in chunks}
        for request_id in taking_part & self.recorders.keys():
            self.recorders[request_id].planned(number, chunks)

    def happened(self, kind: EventKind, number: int, sequence: Sequence) -> None:
        """See `Event`; `number` is the step that is being planned."""
        recorder = self.recorders.get(sequence.request_id)
        if recorder is not None:
            recorder.happened(kind, number, sequence.index)

    def failed(self, number: int, chunks: Items[PlannedChunk]) -> None:
        """Step `number` raised."""
        for chunk in chunks:
            self.happened("failed", number, chunk.sequence)
