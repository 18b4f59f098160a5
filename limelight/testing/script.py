"""What a scripted model answers: a text for everybody, or a function from a turn to the next token."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from limelight.step import SeatSampling
from limelight.testing.vocabulary import END

_T = TypeVar("_T")


@dataclass(slots=True)
class Seat:
    """One choice that runs: its settings, the pages that hold its tokens, and what a script noted of it."""

    sampling: SeatSampling
    num_prompt_tokens: int
    adapter: int | None
    pages: list[int] = field(default_factory=list)
    last_token: int | None = None
    note: Any = None


class Turn:
    """What a script is asked: one choice wants its next token."""

    def __init__(self, seat: Seat, position: int, read: Callable[[Seat, int, int], list[int]]) -> None:
        self._seat = seat
        self._read = read
        self.position = position

    @property
    def number(self) -> int:
        """How many tokens the choice has drawn before."""
        return self.position - self._seat.num_prompt_tokens

    @property
    def sampling(self) -> SeatSampling:
        """The sampling settings, with the choice's own seed."""
        return self._seat.sampling

    @property
    def adapter(self) -> int | None:
        """Id of the adapter, which rises with each load, or None for the base model."""
        return self._seat.adapter

    @property
    def prompt(self) -> list[int]:
        """Token ids of the prompt, as they stand in the pages."""
        return self._read(self._seat, 0, self._seat.num_prompt_tokens)

    @property
    def output(self) -> list[int]:
        """Token ids drawn before."""
        return self._read(self._seat, self._seat.num_prompt_tokens, self.position)

    def noted(self, make: Callable[[], _T]) -> _T:
        """What `make` gave for this choice before; it is asked again if the choice was preempted."""
        if self._seat.note is None:
            self._seat.note = make()
        note: _T = self._seat.note
        return note


class TurnFailure(Exception):
    """Raised by a script: the rows of this choice fail, and its request alone. Any other exception fails the step."""


Script = str | bytes | Callable[[Turn], int]
"""An answer given to everybody, then `<|end|>`; or a function from a turn to the next token id."""


def babble(turn: Turn) -> int:
    """Endless letters that depend on seed, position, adapter and the token before: any mix-up changes them."""
    last = (turn.output or turn.prompt)[-1]
    return 97 + (turn.sampling.seed * 31 + turn.position * 17 + last * 7 + (turn.adapter or 0) * 11) % 26


def echo(turn: Turn) -> int:
    """The prompt again, then `<|end|>`."""
    prompt = turn.prompt
    return prompt[turn.number] if turn.number < len(prompt) else END


def as_function(script: Script) -> Callable[[Turn], int]:
    """A text as the function that answers it."""
    if callable(script):
        return script
    token_ids = [*(script.encode() if isinstance(script, str) else script), END]
    return lambda turn: token_ids[min(turn.number, len(token_ids) - 1)]
