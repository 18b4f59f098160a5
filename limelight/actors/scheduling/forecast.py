"""What lies ahead of a request that has just come: tokens, and seconds. For refusals that say when to come back.

Every running sequence is taken to draw as many tokens as answers did lately, or up to its own limit if that is less;
every step to take what steps like it took (`step_costs.py`). Pure.
"""

import heapq
import math
from collections.abc import Sequence as Items

import msgspec

from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.step_costs import StepCosts, StepLoad, context_of
from limelight.actors.scheduling.turns import Turns
from limelight.errors import DeadlineExceeded, Overloaded
from limelight.generation import Deadlines
from limelight.step import Capacity

_FORGETTING = 0.95
"""Weight of an answer's length against the next one's: the last 20 count for two thirds."""


class Outlook(msgspec.Struct, frozen=True):
    """What lies ahead of a new sequence, as far as anybody knows.

    Attributes:
        num_own_tokens: prompt tokens that no cached page has.
        num_queued_tokens: those of everybody that waits for a first step.
        queue_seconds: until a step works on it; 0 before enough steps have been seen.
        first_token_seconds: until its first token; likewise.
    """

    num_own_tokens: int
    num_queued_tokens: int
    queue_seconds: float
    first_token_seconds: float


FAR_RATIO, FAR_SECONDS = 2.0, 0.1
"""A forecast beyond a deadline by that factor, and by so much, is believed."""


def check_queue(outlook: Outlook, max_queued_tokens: int | None) -> None:
    """Refuse a prompt for which the queue is too long. If nothing waits, any prompt may.

    Raises:
        Overloaded: says when to come back.
    """
    queued, own = outlook.num_queued_tokens, outlook.num_own_tokens
    if max_queued_tokens is not None and queued and queued + own > max_queued_tokens:
        raise Overloaded(
            f"{queued} prompt tokens wait and this prompt has {own} that are not cached; the limit is "
            f"{max_queued_tokens} (max_queued_tokens); try again later",
            retry_after_seconds=outlook.queue_seconds or 1.0,
        )


def check_deadlines(outlook: Outlook, deadlines: Deadlines, elapsed: float) -> None:
    """Refuse what could not be in time by far: its client hears of it at once, and no step works for nothing.

    Args:
        elapsed: seconds since the request came.

    Raises:
        DeadlineExceeded: names the limit.
    """
    first_token = elapsed + outlook.first_token_seconds
    expected = (
        ("max_queue_ms", deadlines.max_queue_ms, elapsed + outlook.queue_seconds, "its first step"),
        ("max_ttft_ms", deadlines.max_ttft_ms, first_token, "its first token"),
        ("max_total_ms", deadlines.max_total_ms, first_token, "its first token"),
    )
    for name, limit, seconds, what in expected:
        if limit is not None and seconds > FAR_RATIO * limit / 1000 and seconds > limit / 1000 + FAR_SECONDS:
            raise DeadlineExceeded(
                f"{what} is expected {seconds * 1000:.0f} ms after its arrival, and {name} is {limit:g}", param=name
            )


class AnswerLengths:
    """How many tokens answers have, lately."""

    __slots__ = ("_sum", "_weights")

    def __init__(self) -> None:
        self._sum = self._weights = 0.0

    def add(self, num_tokens: int) -> None:
        """An answer has ended, whoever ended it."""
        self._sum = _FORGETTING * self._sum + num_tokens
        self._weights = _FORGETTING * self._weights + 1

    def left(self, sequence: Sequence) -> int:
        """Tokens that a running sequence may be expected to draw yet, at least 1."""
        limit = sequence.max_length - sequence.num_tokens
        if not self._weights:
            return max(limit, 1)
        drawn = sequence.num_tokens - sequence.num_prompt_tokens
        return max(1, min(limit, round(self._sum / self._weights) - drawn))


class Forecast:
    """Works out what lies ahead.

    Args:
        step_costs: of this engine.
        lengths: of its answers.
    """

    def __init__(self, capacity: Capacity, step_costs: StepCosts, lengths: AnswerLengths) -> None:
        self._capacity = capacity
        self._costs = step_costs
        self._lengths = lengths

    def of(
        self,
        sequence: Sequence,
        running: Items[Sequence],
        waiting: Items[Sequence],
        num_free_seats: int,
        num_free_pages: int,
        turns: Turns,
    ) -> Outlook:
        """The outlook of `sequence`, which is in neither list, behind those of `waiting` whose turn is before its."""
        ahead, num_taken_back, takes_back = self._ahead(sequence, running, waiting, turns)
        served = turns.account_of(sequence).served if takes_back else math.inf
        decodes = _decodes([other for other in running if other.num_wanted_tokens <= 1])
        prompts = [
            _prompt(other, other.num_wanted_tokens)
            for other in running
            if other.num_wanted_tokens > 1 and other.account.served <= served
        ]
        prompts += [_prompt(other, other.num_expected_tokens) for other in ahead]
        shortage = len(ahead) + 1 - num_free_seats - num_taken_back
        pages = [-(-other.num_tokens // self._capacity.page_size) for other in (sequence, *ahead)]
        if sum(pages) > num_free_pages and not takes_back:
            shortage = max(shortage, 1)
        queue_seconds = self._seconds(prompts, decodes)
        if shortage > 0 and running:
            queue_seconds = max(queue_seconds, self.seconds_until_free(running, shortage))
        own = [_prompt(sequence, sequence.num_expected_tokens)]
        return Outlook(
            num_own_tokens=sequence.num_expected_tokens,
            num_queued_tokens=sum(other.num_expected_tokens for other in waiting if not other.was_scheduled),
            queue_seconds=queue_seconds,
            first_token_seconds=queue_seconds + self._seconds(own, decodes),
        )

    def _ahead(
        self, sequence: Sequence, running: Items[Sequence], waiting: Items[Sequence], turns: Turns
    ) -> tuple[list[Sequence], int, bool]:
        """Who sits down before `sequence`, how many of all these by taking a seat back, and whether it does itself."""
        if not turns.are_taken(sequence):
            return [other for other in waiting if other.rank < sequence.rank], 0, False
        order = turns.in_order([*waiting, sequence])
        place = next(number for number, (other, _) in enumerate(order) if other is sequence)
        num_taken_back = min(sum(takes for _, takes in order[: place + 1]), turns.num_taken_back(sequence, running))
        takes_back = order[place][1] and num_taken_back > 0
        return [other for other, _ in order[:place]], num_taken_back, takes_back

    def seconds_until_free(
        self, running: Items[Sequence], count: int = 1, beside: Items[Sequence] | None = None
    ) -> float:
        """Until `count` seats have been given up; who sits down on one in the meantime gives it up again, too.

        Args:
            beside: all that run, if `running` are only some of them.
        """
        lefts = [self._lengths.left(sequence) for sequence in running]
        if not lefts:
            return 0.0
        rounds, rest = divmod(count - 1, len(lefts))
        steps = rounds * max(lefts) + heapq.nsmallest(rest + 1, lefts)[-1]
        return steps * self._costs.seconds(_decodes(running if beside is None else beside))

    def _seconds(self, prompts: Items[tuple[int, float]], decodes: StepLoad) -> float:
        """For these prompts, told by `_prompt`, beside these decodes in each step."""
        num_tokens = sum(tokens for tokens, _ in prompts)
        if not num_tokens:
            return 0.0
        budget = max(1, self._capacity.max_num_batched_tokens - decodes.num_decodes)
        num_steps = -(-num_tokens // budget)
        context = sum(context for _, context in prompts)
        whole = StepLoad(decodes.num_decodes, num_tokens, decodes.decode_context, context)
        return self._costs.seconds(whole) + (num_steps - 1) * self._costs.seconds(decodes)


def _decodes(sequences: Items[Sequence]) -> StepLoad:
    """A step of one token of each."""
    return StepLoad(len(sequences), 0, sum(sequence.num_tokens for sequence in sequences))


def _prompt(sequence: Sequence, num_tokens: int) -> tuple[int, float]:
    """The last `num_tokens` known tokens, and the context that they attend to."""
    return num_tokens, context_of(sequence.num_tokens - num_tokens, num_tokens)
