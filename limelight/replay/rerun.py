"""Runs the steps of a bundle again, on the executor of a loaded model: no engine, no planner, no clock.

Each step gets the recorded chunks of the request, with the tokens that were drawn then, so that what a step draws
depends on this step alone; the first token that comes out otherwise ends the replay. Neighbours have their lengths and
tokens of no meaning. What was adopted from the prefix cache is computed before.
"""

from collections.abc import Callable

import msgspec

from limelight.actors.scheduling.sequence import seat_sampling
from limelight.errors import InvalidRequest, StepFailure
from limelight.generation import MAX_LOGPROBS
from limelight.models.constraints.compiling import ConstraintCompiler, needs_constraints
from limelight.models.constraints.constraint import Constraint, Constraints
from limelight.models.loaded_model import LoadedModel
from limelight.parsing.reasoning import opening
from limelight.replay.bundle import OWN, Bundle, RecordedChoice, RecordedStep, Row
from limelight.replay.seats import Name, Resident, Seats, TakenFor
from limelight.replay.verdict import Difference
from limelight.step import Chunk, Sampled, SampledLogprobs, SeatSampling, Step

Progress = Callable[[int, int], None]
"""Steps that are through, of how many."""
NUM_TOKENS_OF_MARKS = 32
"""As in `actors/request.py`."""


class Rerun:
    """One replay. Blocking; `run` is called once, and the model's executor is used by nobody else.

    Args:
        with_neighbours: the others in the recorded steps run, too.
        adapter: id of the loaded adapter of the request, or None.

    Attributes:
        num_compared: output tokens that came out the same, and the one that did not.
        largest_logprob_change: of the tokens that came out the same; None: nothing to compare with.

    Raises:
        InvalidRequest: the model cannot run what was recorded.
    """

    def __init__(self, bundle: Bundle, model: LoadedModel, *, with_neighbours: bool, adapter: int | None) -> None:
        self.num_compared = 0
        self.largest_logprob_change: float | None = None
        self._bundle = bundle
        self._model = model
        self._with_neighbours = with_neighbours
        self._adapter = adapter
        self._check_fits()
        self._seats = Seats(model.capacity)
        self._number = 0
        self._tokens = [(*bundle.prompt_token_ids, *choice.token_ids) for choice in bundle.choices]
        self._sampling = [self._choice_sampling(choice) for choice in bundle.choices]
        self._last_step = {(row.request, row.choice): step.number for step in bundle.steps for row in step.rows}
        self._unseated = [event for event in bundle.events if event.kind == "unseated"]
        self._failed = {event.step for event in bundle.events if event.kind == "failed"}
        constraints = self._constraints()
        self._constraint: list[Constraint | None] = [
            None if constraints is None else constraints.begin() for _ in bundle.choices
        ]
        self._num_known = [len(bundle.prompt_token_ids)] * len(bundle.choices)
        self._num_followed = [len(bundle.prompt_token_ids)] * len(bundle.choices)

    def run(self, progress: Progress) -> Difference | None:
        """The first difference; None: every token that could be compared is the same.

        Raises:
            StepFailure: a step cannot be run here.
            OutOfMemory: it does not fit.
        """
        for number, step in enumerate(self._bundle.steps, start=1):
            difference = self._run_step(step)
            progress(number, len(self._bundle.steps))
            if difference is not None:
                return difference
        return None

    # ---- one step

    def _run_step(self, step: RecordedStep) -> Difference | None:
        while self._unseated and self._unseated[0].step <= step.number:
            self._seats.leave((OWN, self._unseated.pop(0).choice))
        rows = [row for row in step.rows if self._is_run(row)]
        if not any(row.request == OWN for row in rows) or step.number in self._failed:
            return None
        needed = {(row.request, row.choice) for row in rows}
        placed = [self._place(row, needed) for row in rows]
        drawn = self._submit([chunk for chunk, _ in placed], self._masks(rows))
        for row, sampled, (_, resident) in zip(rows, drawn, placed, strict=True):
            end = row.start + row.num_tokens
            resident.num_computed = end
            resident.drawn_at = end if row.sample and not row.drafts else None
            if row.request == OWN and row.sample and sampled is not None:
                difference = self._compare(step.number, row, sampled)
                if difference is not None:
                    return difference
        for name in needed:
            if self._last_step[name] == step.number:
                self._seats.leave(name)
        return None

    def _is_run(self, row: Row) -> bool:
        """Rows of the request behind its last token drew what nobody wanted."""
        if row.request != OWN:
            return self._with_neighbours
        return row.start + row.num_tokens - len(row.drafts) <= len(self._tokens[row.choice])

    def _place(self, row: Row, needed: set[Name]) -> tuple[Chunk, Resident]:
        """The chunk of a row, its sequence being seated and computed up to there."""
        name, end = (row.request, row.choice), row.start + row.num_tokens
        resident = self._seats.sit(name, self._taken_for(row), needed)
        self._catch_up(row, resident, needed)
        reads_seat = row.num_tokens == 1 and resident.drawn_at == row.start
        token_ids = None if reads_seat else (*self._token_ids(row, row.start, end - len(row.drafts)), *row.drafts)
        new_pages = self._seats.extend(resident, end, needed)
        chunk = Chunk(
            seat=resident.seat,
            start=row.start,
            num_tokens=row.num_tokens,
            token_ids=token_ids,
            new_pages=new_pages,
            sample=row.sample,
            num_drafts=len(row.drafts),
            masked=row.masked and row.request == OWN,
        )
        return chunk, resident

    def _catch_up(self, row: Row, resident: Resident, needed: set[Name]) -> None:
        """Compute what the recorded sequence found in the cache, or in steps of which the request was no part."""
        budget = self._model.capacity.max_num_batched_tokens
        while resident.num_computed < row.start:
            start, end = resident.num_computed, min(resident.num_computed + budget, row.start)
            chunk = Chunk(
                seat=resident.seat,
                start=start,
                num_tokens=end - start,
                token_ids=self._token_ids(row, start, end),
                new_pages=self._seats.extend(resident, end, needed),
            )
            self._submit([chunk], {})
            resident.num_computed = end

    def _submit(self, chunks: list[Chunk], masks: dict[int, bytes]) -> tuple[Sampled | None, ...]:
        taken, released = self._seats.deltas()
        self._number += 1
        try:
            wait = self._model.executor.submit(
                Step(number=self._number, chunks=tuple(chunks), taken=taken, released=released)
            )
            if any(chunk.masked for chunk in chunks):
                self._model.executor.put_masks(self._number, masks)
            return wait()
        except Exception as error:
            failure = StepFailure(f"a step of this bundle cannot be run here: {type(error).__name__}: {error}")
            raise failure from error

    def _masks(self, rows: list[Row]) -> dict[int, bytes]:
        """Of the request's own rows; those of others draw without."""
        masks = {}
        for number, row in enumerate(rows):
            constraint = self._constraint[row.choice] if row.request == OWN and row.masked else None
            if constraint is not None:
                known = self._tokens[row.choice][self._num_followed[row.choice] : row.start + row.num_tokens]
                constraint.advance(known)
                self._num_followed[row.choice] += len(known)
                masks[number] = constraint.mask()
        return masks

    def _compare(self, step: int, row: Row, sampled: Sampled) -> Difference | None:
        """What a row drew, with what it drew then; behind a guess that was wrong nothing was kept."""
        tokens, choice = self._tokens[row.choice], self._bundle.choices[row.choice]
        first = row.start + row.num_tokens - len(row.drafts)
        num_prompt = len(self._bundle.prompt_token_ids)
        if first >= len(tokens):
            return None
        got = sampled.token_ids if sampled.failure is None else ()
        for offset in range(max(len(got), 1)):
            if first + offset >= len(tokens):
                return None
            expected, position = tokens[first + offset], first + offset - num_prompt
            token_id = got[offset] if offset < len(got) else None
            entry = sampled.logprobs[offset] if sampled.logprobs and token_id is not None else None
            recorded = choice.logprobs[position] if position < len(choice.logprobs) else None
            self.num_compared += 1
            if token_id != expected:
                return Difference(
                    choice=row.choice,
                    position=position,
                    step=step,
                    expected=expected,
                    expected_text=self._text(expected),
                    got=token_id,
                    got_text="" if token_id is None else self._text(token_id),
                    expected_logprob=None if entry is None else _logprob_of(expected, entry),
                    got_logprob=None if entry is None else entry.logprob,
                    recorded_logprob=recorded,
                    reason=sampled.failure or "",
                )
            self._num_known[row.choice] = max(self._num_known[row.choice], first + offset + 1)
            if entry is not None and recorded is not None:
                change = abs(entry.logprob - recorded)
                self.largest_logprob_change = max(change, self.largest_logprob_change or 0.0)
        return None

    # ---- what sequences are made of

    def _token_ids(self, row: Row, start: int, end: int) -> tuple[int, ...]:
        """Tokens of a row's sequence; those of neighbours mean nothing."""
        if row.request == OWN:
            return self._tokens[row.choice][start:end]
        return tuple((17 * position + row.request) % self._bundle.capacity.vocab_size for position in range(start, end))

    def _taken_for(self, row: Row) -> TakenFor:
        if row.request != OWN:
            return TakenFor(SeatSampling(temperature=0.0), (0,))
        prompt = self._bundle.prompt_token_ids
        output = self._tokens[row.choice][len(prompt) : self._num_known[row.choice]]
        return TakenFor(self._sampling[row.choice], prompt, output, self._adapter)

    def _choice_sampling(self, choice: RecordedChoice) -> SeatSampling:
        """As it was, with the log-probabilities of the best tokens, to tell how near another one was."""
        bundle = self._bundle
        sampling = seat_sampling(
            bundle.sampling,
            seed=choice.seed,
            stop_token_ids=frozenset(bundle.stop_token_ids),
            num_prompt_tokens=len(bundle.prompt_token_ids),
            vocab_size=self._model.capacity.vocab_size,
            masked=needs_constraints(bundle.sampling),
        )
        return msgspec.structs.replace(sampling, num_logprobs=min(MAX_LOGPROBS, self._model.capacity.vocab_size))

    def _constraints(self) -> Constraints | None:
        bundle, model = self._bundle, self._model
        if not needs_constraints(bundle.sampling):
            return None
        compiler = ConstraintCompiler(model.vocabulary, model.capacity.vocab_size, model.eos_token_ids)
        constraints = compiler.compile(bundle.sampling, bundle.reasoning)
        if bundle.reasoning is None:
            return constraints
        end = bundle.prompt_token_ids[-NUM_TOKENS_OF_MARKS:]
        text = model.vocabulary.decode(end, skip_special_tokens=False)
        return msgspec.structs.replace(constraints, begins=opening(text, bundle.reasoning))

    def _text(self, token_id: int) -> str:
        return self._model.vocabulary.decode([token_id], skip_special_tokens=False)

    def _check_fits(self) -> None:
        bundle, here = self._bundle, self._model.capacity
        if bundle.capacity.vocab_size != here.vocab_size:
            raise InvalidRequest(
                f"the bundle is of a model with {bundle.capacity.vocab_size:,} token ids, and this one has "
                f"{here.vocab_size:,}: it is another model; name the right one with --model"
            )


def _logprob_of(token_id: int, entry: SampledLogprobs) -> float | None:
    """Of a token beside the drawn one, if it is among the best."""
    if token_id not in entry.top_token_ids:
        return None
    return entry.top_logprobs[entry.top_token_ids.index(token_id)]
