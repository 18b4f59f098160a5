"""Which steps still need masks, and when these are asked for. Owned by the scheduler actor."""

from collections import deque

from limelight.actors.channel import Sender
from limelight.actors.messages import MakeMasks, MaskRow, Masks, ToConstraints, ToModelRunner
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.step import Step


class MaskRequests:
    """Sees to it that each step with masked chunks gets its `Masks`, whatever becomes of its sequences.

    What a step may draw depends on the tokens that those before it drew. So its masks are asked for when all of these
    have been applied: at once if no other step is in flight, else while the step's layers run.
    """

    def __init__(self, planner: Planner, constraints: Sender[ToConstraints], runner: Sender[ToModelRunner]) -> None:
        self._planner = planner
        self._constraints = constraints
        self._runner = runner
        self._numbers: deque[int] = deque()

    def add(self, step: Step) -> None:
        """A step has been told to the runner."""
        if any(chunk.masked for chunk in step.chunks):
            self._numbers.append(step.number)

    def ask(self) -> None:
        """Ask for the masks whose time has come."""
        while self._numbers and self._planner.is_next(self._numbers[0]):
            number = self._numbers.popleft()
            rows = tuple(_row(chunk, sequence) for chunk, sequence in self._planner.constrained(number))
            if rows:
                self._constraints.tell(MakeMasks(number, rows))
            else:
                self._runner.tell(Masks(number, {}))


def _row(chunk: int, sequence: Sequence) -> MaskRow:
    token_ids = tuple(sequence.token_ids[sequence.num_followed_tokens :])
    sequence.num_followed_tokens = len(sequence.token_ids)
    return MaskRow(chunk, sequence.constraint, token_ids, sequence.request_id)
