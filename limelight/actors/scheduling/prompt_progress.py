"""How far the prompt of a live request is: its place in the queue, then its tokens. Asked for, never told."""

from collections.abc import Callable, Iterable

import msgspec

from limelight.actors.scheduling.in_flight import InFlightStep
from limelight.actors.scheduling.sequence import Sequence


class PromptProgress(msgspec.Struct, frozen=True):
    """Of a request that has drawn nothing yet.

    Attributes:
        queue_position: 1 for the request that is served next, 0 once it is being served. Preempted requests are not
            counted, so it falls unless requests arrive that have a higher priority, or whose share has had less.
        prompt_tokens: tokens of the prompt.
        prompt_tokens_done: those of them that have been computed or came from the prefix cache.
        cached_tokens: those that came from the prefix cache.
    """

    queue_position: int
    prompt_tokens: int
    prompt_tokens_done: int
    cached_tokens: int


def prompt_progress(
    choices: Iterable[Sequence], in_flight: Iterable[InFlightStep], positions: dict[str, int]
) -> PromptProgress:
    """The progress of the request with these choices, which share a prompt; the first one computes it."""
    first = max(choices, key=lambda sequence: sequence.num_computed_tokens)
    under_way = 0
    if first.num_computed_tokens:  # many who ask wait: they need not look through the steps
        under_way = sum(
            chunk.num_tokens
            for step in in_flight
            for chunk in step.chunks
            if chunk.sequence is first and not chunk.stale
        )
    num_tokens = first.num_prompt_tokens
    return PromptProgress(
        queue_position=0 if first.was_scheduled else positions.get(first.request_id, 0),
        prompt_tokens=num_tokens,
        prompt_tokens_done=min(max(first.num_computed_tokens - under_way, first.cached_tokens), num_tokens),
        cached_tokens=first.cached_tokens,
    )


class QueuePositions:
    """Places of the requests that have never been served, worked out once for all who ask between two changes."""

    __slots__ = ("_positions", "_version")

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}
        self._version: tuple[int, ...] = ()

    def of(self, in_order: Callable[[], Iterable[tuple[Sequence, bool]]], version: tuple[int, ...]) -> dict[str, int]:
        """Position by request id, from 1 on; `version` differs whenever the order may differ.

        Args:
            in_order: the waiting sequences, as `Turns.in_order` gives them.
        """
        if version != self._version:
            order = dict.fromkeys(each.request_id for each, _ in in_order() if not each.was_scheduled)
            self._positions = {request_id: place for place, request_id in enumerate(order, start=1)}
            self._version = version
        return self._positions
