"""How long steps take, learnt from those that are through: what forecasts and chunks of prompts are made from.

A step is modelled as a constant (launching, reading the weights), and prices for each decode, each token of a decode's
context, each token of a prompt, and each token of context that a token of a prompt attends to. The first three are
learnt from steps of decodes alone, the others from what other steps took beyond those. Old steps count ever less, each
kind against its own: an hour of decodes does not wear out what is known of prompts.
"""

import math
from collections import deque

import msgspec

from limelight.actors.scheduling.prices import Prices

_FORGETTING_DECODES, _FORGETTING_PROMPTS = 0.97, 0.98
"""Weight of a step against the next one of its kind: the last 33, or 50, count for two thirds."""
_LEAST_STEPS = 8
"""Before so many steps nothing is forecast."""
_SLOWEST_RATIO = 8.0
"""Longer than so many times what was expected says little of the next step: a first write of pages, a busy machine."""
TOLERANCE = 1.2
"""A step that is to take a given time takes at most so many times that, 99 times in 100."""
_MARGIN_STEPS, _MARGIN_QUANTILE, _MARGIN_AIM = 192, 0.985, 1.1
"""So much of the last steps is to be within the aim, which leaves room for those of which nothing is known yet."""
_ASSUMED_STEPS = 64
"""Taken to have been that late before any has been seen."""
_LARGEST_MARGIN = 1.3
"""Steps that are later than that are so by other causes: smaller chunks would read prompts slower and mend nothing."""
_PACE_FORGETTING = 0.85
"""The last seven steps say how fast the device is just now: others may use it, too, for seconds."""


class StepLoad(msgspec.Struct, frozen=True, gc=False):
    """What a step has to do.

    Attributes:
        num_decodes: chunks of one token.
        num_prompt_tokens: tokens of all other chunks.
        decode_context: tokens before those decodes, summed.
        prompt_context: tokens before each of those prompt tokens, summed.
    """

    num_decodes: int
    num_prompt_tokens: int
    decode_context: float = 0
    prompt_context: float = 0


def context_of(start: int, num_tokens: int) -> float:
    """The `prompt_context` of a chunk: tokens before each of its tokens, summed."""
    return num_tokens * (start + (num_tokens - 1) / 2)


class StepCosts:
    """Predicts the seconds of a step. Pure; times are handed in."""

    __slots__ = ("_decodes", "_num_steps", "_pace", "_prompts", "_ratios")

    def __init__(self) -> None:
        self._num_steps = 0
        self._decodes = Prices(3, _FORGETTING_DECODES)
        self._prompts = Prices(2, _FORGETTING_PROMPTS)
        self._pace = 1.0  # seconds of steps just now, over those expected
        self._ratios: deque[float] = deque([TOLERANCE] * _ASSUMED_STEPS, _MARGIN_STEPS)

    @property
    def is_known(self) -> bool:
        """Whether enough steps have been seen."""
        return self._num_steps >= _LEAST_STEPS

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step with this load took `seconds` of the device's time."""
        expected = self.seconds(load)
        if expected > 0:
            seconds = min(seconds, _SLOWEST_RATIO * expected)
        self._num_steps += 1
        if load.num_prompt_tokens:
            if expected > 0 and load.num_decodes:
                self._ratios.append(seconds / (self._pace * expected))
                self._pace = _PACE_FORGETTING * self._pace + (1 - _PACE_FORGETTING) * seconds / expected
            beyond = max(0.0, seconds - self._decode_seconds(load))
            self._prompts.learn((load.num_prompt_tokens, load.prompt_context), beyond)
        elif load.num_decodes:
            self._decodes.learn((1.0, load.num_decodes, load.decode_context), seconds)

    def seconds(self, load: StepLoad) -> float:
        """What a step takes; 0 before enough is known."""
        if not self.is_known:
            return 0.0
        return self._decode_seconds(load) + self._prompts.of((load.num_prompt_tokens, load.prompt_context))

    def prompt_tokens_within(self, seconds: float, decodes: StepLoad, context: int) -> int | None:
        """Tokens of a prompt beside `decodes` with which a step takes `seconds` as a rule, and 99 times in 100 at
        most `TOLERANCE` times that.

        Args:
            context: tokens before the first of them.

        Returns:
            0 or more. None: not enough is known yet.
        """
        token, attended = self._prompts.values
        if not self.is_known or token + attended <= 0:
            return None
        left = seconds / (self._margin() * self._pace) - self._decode_seconds(decodes)
        if left <= 0:
            return 0
        token += attended * context  # n tokens take token * n + attended * n * n / 2
        return int(2 * left / (token + math.sqrt(token * token + 2 * attended * left)))

    def _margin(self) -> float:
        """How many times shorter steps must be planned than they may take, from how much longer they took lately."""
        late = sorted(self._ratios)[int(_MARGIN_QUANTILE * len(self._ratios))]
        return min(max(late / _MARGIN_AIM, 1.0), _LARGEST_MARGIN)

    def _decode_seconds(self, load: StepLoad) -> float:
        return self._decodes.of((1.0, load.num_decodes, load.decode_context))
