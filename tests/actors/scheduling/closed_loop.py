"""A planner and a simulated device, closed into a loop that checks everything after each operation."""

import dataclasses
from collections import deque
from collections.abc import Sequence as Tokens

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.prompt_lookup import Speculation
from limelight.actors.scheduling.prompt_readout import PromptReadout
from limelight.actors.scheduling.sequence import Sequence
from limelight.generation import Pooling
from limelight.step import Capacity, SeatSampling, Step, StepResult
from tests.actors.scheduling.simulated_device import Expected, SimulatedDevice, solo_readout, solo_run


def capacity(
    *,
    num_pages: int = 64,
    page_size: int = 16,
    num_seats: int = 8,
    budget: int = 64,
    max_model_len: int = 512,
    vocab_size: int = 50,
) -> Capacity:
    return Capacity(
        num_pages=num_pages,
        page_size=page_size,
        num_seats=num_seats,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
    )


@dataclasses.dataclass
class Record:
    """A sequence, what it must give, and what it has given. `ended`: None, "finished", "cancelled" or "failed"."""

    sequence: Sequence
    expected: Expected
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    ended: str | None = None

    @property
    def name(self) -> tuple[str, int]:
        return self.sequence.request_id, self.sequence.index


@dataclasses.dataclass
class Submitted:
    step: Step
    result: StepResult
    fails: bool


class ClosedLoop:
    def __init__(
        self,
        limits: Capacity,
        *,
        depth: int = 1,
        prefix_caching: bool = True,
        checked: bool = True,
        speculation: Speculation | None = None,
    ) -> None:
        self.capacity = limits
        self.planner = Planner(limits, prefix_caching=prefix_caching, pipeline_depth=depth, speculation=speculation)
        self.device = SimulatedDevice(limits)
        self.records: dict[tuple[str, int], Record] = {}
        self.submitted: deque[Submitted] = deque()
        self.num_steps = 0
        self.checked = checked

    def add(
        self,
        name: str,
        prompt: Tokens[int],
        *,
        index: int = 0,
        max_tokens: int | None = 5,
        stop_token_ids: frozenset[int] = frozenset(),
        sampling: SeatSampling | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        share: str = "anonymous",
        weight: float = 1.0,
        scores: bool = False,
        pooling: Pooling | None = None,
    ) -> Record:
        sampling = sampling or SeatSampling(temperature=0.0)
        sequence = Sequence(
            request_id=name,
            index=index,
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            stop_token_ids=stop_token_ids,
            max_tokens=max_tokens,
            priority=priority,
            cache_salt=cache_salt,
            share=share,
            weight=weight,
        )
        if scores or pooling is not None or max_tokens == 0:
            sequence.readout = PromptReadout(len(prompt), 0 if scores else None, pooling, max_tokens != 0)
        self.planner.add(sequence)
        expected = solo_run(prompt, sampling, stop_token_ids, max_tokens, self.capacity)
        expected = dataclasses.replace(expected, **solo_readout(prompt, scores=scores, pooling=pooling))
        record = Record(sequence, expected)
        assert record.name not in self.records
        self.records[record.name] = record
        self._check()
        return record

    def cancel(self, name: str, index: int | None = None) -> None:
        for record in self.records.values():
            if record.sequence.request_id == name and index in (None, record.sequence.index) and not record.ended:
                record.ended = "cancelled"
        self.planner.cancel(name, index)
        self._check()

    def plan(self, *, fails: bool = False) -> Step | None:
        """Plan a step and run it on the device; its answer waits in `submitted`."""
        step = self.planner.plan()
        self._check()
        if step is None:
            assert self.submitted or not self.live, "nothing is planned although sequences are live"
            return None
        self.num_steps += 1
        self.submitted.append(Submitted(step, self.device.run(step, fails=fails), fails))
        return step

    def answer(self) -> None:
        """Tell the planner of the oldest step in flight."""
        self._tell(self.submitted.popleft())

    def answer_newest_failure(self) -> None:
        """A step that fails at once is told before older ones are through."""
        if self.submitted and self.submitted[-1].fails:
            self._tell(self.submitted.pop())

    def step(self, *, fails: bool = False) -> Step:
        """Plan and answer one step, alone in the pipeline."""
        step = self.plan(fails=fails)
        assert step is not None
        self.answer()
        return step

    def run(self, max_steps: int = 10_000) -> None:
        """Keep the pipeline full until every sequence has ended."""
        last = self.num_steps + max_steps
        while self.live or self.submitted:
            assert self.num_steps < last, "no progress"
            if self.plan() is None:
                self.answer()
        self.check_empty()

    @property
    def live(self) -> list[Record]:
        return [record for record in self.records.values() if not record.ended]

    def check_empty(self) -> None:
        """Every page and seat has come back, and every finished sequence gave what it gives alone."""
        planner = self.planner
        assert not planner.has_work
        assert (planner.num_running, planner.num_waiting) == (0, 0)
        assert planner.num_free_pages == self.capacity.num_pages
        assert planner.num_free_seats == self.capacity.num_seats
        for record in self.records.values():
            assert record.ended
            if record.ended == "finished":
                assert record.tokens == record.expected.tokens

    def _tell(self, submitted: Submitted) -> None:
        if submitted.fails:
            for sequence in self.planner.fail(submitted.step.number):
                record = self.records[sequence.request_id, sequence.index]
                assert not record.ended, "a sequence ends twice"
                record.ended = "failed"
        else:
            for progress in self.planner.complete(submitted.step.number, submitted.result):
                self._receive(progress)
        self._check()

    def _receive(self, progress) -> None:
        record = self.records[progress.sequence.request_id, progress.sequence.index]
        assert record.sequence is progress.sequence
        assert not record.ended, "tokens after the end"
        if not record.tokens:
            assert progress.scores == record.expected.scores, "not the scores of a solo run"
            hidden = progress.hidden
            found = None if hidden is None else sum(map(int.from_bytes, hidden)) % 2**64
            assert found == record.expected.hidden, "a row is left out, or there twice"
        record.tokens += progress.token_ids
        num_tokens = len(record.tokens)
        assert record.tokens == record.expected.tokens[:num_tokens], "not the tokens of a solo run"
        if record.sequence.sampling.num_logprobs is not None:
            record.logprobs += [entry.logprob for entry in progress.logprobs or ()]
            assert record.logprobs == record.expected.logprobs[:num_tokens]
        assert bool(progress.finish_reason) == (num_tokens == len(record.expected.tokens))
        if progress.finish_reason:
            record.ended = "finished"
            assert progress.finish_reason == record.expected.finish_reason
            assert progress.stop_token_id == record.expected.stop_token_id
            assert progress.finish_details == record.expected.finish_details

    def _check(self) -> None:
        if self.checked:
            self.planner.check()
