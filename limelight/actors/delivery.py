"""When drawn tokens are told to their requests: at once while few sequences run, several together when many do.

A message costs its request, its client's stream and its socket a turn of the event loop each, far more than planning
the token did. So what all streams together may cost is bounded, and a token waits a little for the next ones, never so
long that a reader would see it. First tokens and ends don't wait. A stop string is found when its tokens are told: its
sequence may have drawn a few more by then, which count for nothing.
"""

from collections.abc import Collection

from limelight.actors.messages import Generated
from limelight.actors.scheduling.planner import Progress
from limelight.actors.scheduling.sequence import Sequence

MAX_MESSAGES_PER_SECOND = 1000
"""Over all sequences. 64 of them have news every 64 ms then."""
LONGEST_SECONDS = 0.1
"""However many run."""
FREE_SEQUENCES = 16
"""So few have each token at once."""


def seconds_between_messages(num_running: int, asked: float | None) -> float:
    """Between two messages to one sequence's request.

    Args:
        asked: by the settings, whatever runs.
    """
    if asked is not None:
        return asked
    if num_running <= FREE_SEQUENCES:
        return 0.0
    return min(num_running / MAX_MESSAGES_PER_SECOND, LONGEST_SECONDS)


class Deliveries:
    """Progress that has not been told yet, by sequence. Owned by the scheduler actor."""

    def __init__(self) -> None:
        self._waiting: dict[Sequence, list[Progress]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, progress: Progress) -> bool:
        """Keep `progress`; returns whether it can wait."""
        sequence = progress.sequence
        waiting = self._waiting.get(sequence)
        if waiting is None:
            self._waiting[sequence] = [progress]
        else:
            waiting.append(progress)
        is_first = len(sequence.token_ids) - len(sequence.prompt_token_ids) == len(progress.token_ids)
        return progress.finish_reason is None and not is_first

    def take(self, sequence: Sequence) -> Generated:
        """What the request of `sequence` is to be told now; there must be something."""
        return _joined(self._waiting.pop(sequence))

    def take_of(self, request_ids: Collection[str]) -> list[tuple[Sequence, Generated]]:
        """The same for each sequence of these requests."""
        return [
            (sequence, self.take(sequence)) for sequence in list(self._waiting) if sequence.request_id in request_ids
        ]

    def take_all(self) -> list[tuple[Sequence, Generated]]:
        """The same for all sequences."""
        taken, self._waiting = self._waiting, {}
        return [(sequence, _joined(waiting)) for sequence, waiting in taken.items()]


def _joined(waiting: list[Progress]) -> Generated:
    last = waiting[-1]
    token_ids, logprobs = last.token_ids, last.logprobs
    num_drafts, num_accepted = last.num_drafts, last.num_accepted
    if len(waiting) > 1:
        token_ids = tuple([token_id for progress in waiting for token_id in progress.token_ids])
        if logprobs is not None:
            logprobs = tuple([entry for progress in waiting for entry in progress.logprobs or ()])
        num_drafts = sum([progress.num_drafts for progress in waiting])
        num_accepted = sum([progress.num_accepted for progress in waiting])
    return Generated(
        index=last.sequence.index,
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        finish_details=last.finish_details,
        cached_tokens=last.sequence.cached_tokens,
        num_drafts=num_drafts,
        num_accepted=num_accepted,
        scores=waiting[0].scores,
        hidden=waiting[0].hidden,
    )
