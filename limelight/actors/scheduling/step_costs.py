"""How long steps take, learnt from those that are through: what forecasts are made from.

A step is modelled as a constant (launching, reading the weights), a price for each decode, and a price for each token
of a prompt. The first two are learnt by a straight line through steps of decodes alone, the third from what other steps
took beyond that line. Old steps count ever less, each kind against its own: an hour of decodes does not wear out what
is known of prompts.
"""

FORGETTING = 0.97
"""Weight of a step against the next one of its kind: the last 33 count for two thirds."""
_LEAST_STEPS = 8
"""Before so many steps nothing is forecast."""
_SLOWEST_RATIO = 8.0
"""Longer than so many times what was expected says little of the next step: a first write of pages, a busy machine."""


class StepCosts:
    """Predicts the seconds of a step from its decodes and its prompt tokens. Pure; times are handed in."""

    __slots__ = (
        "_constant",
        "_decode_price",
        "_num_steps",
        "_prompt_price",
        "_sum_decodes",
        "_sum_decodes_seconds",
        "_sum_decodes_squared",
        "_sum_prompt",
        "_sum_prompt_seconds",
        "_sum_seconds",
        "_sum_weights",
    )

    def __init__(self) -> None:
        self._num_steps = 0
        self._constant = self._decode_price = self._prompt_price = 0.0
        self._sum_weights = self._sum_seconds = self._sum_prompt = self._sum_prompt_seconds = 0.0
        self._sum_decodes = self._sum_decodes_squared = self._sum_decodes_seconds = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough steps have been seen."""
        return self._num_steps >= _LEAST_STEPS

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step with these took `seconds` of the device's time."""
        expected = self.seconds(num_decodes, num_prompt_tokens)
        if expected > 0:
            seconds = min(seconds, _SLOWEST_RATIO * expected)
        self._num_steps += 1
        if num_prompt_tokens:
            beyond = max(0.0, seconds - self._constant - self._decode_price * num_decodes)
            self._sum_prompt = FORGETTING * self._sum_prompt + num_prompt_tokens
            self._sum_prompt_seconds = FORGETTING * self._sum_prompt_seconds + beyond
            self._prompt_price = self._sum_prompt_seconds / self._sum_prompt
            return
        if not num_decodes:
            return
        self._sum_weights = FORGETTING * self._sum_weights + 1
        self._sum_seconds = FORGETTING * self._sum_seconds + seconds
        self._sum_decodes = FORGETTING * self._sum_decodes + num_decodes
        self._sum_decodes_squared = FORGETTING * self._sum_decodes_squared + num_decodes * num_decodes
        self._sum_decodes_seconds = FORGETTING * self._sum_decodes_seconds + num_decodes * seconds
        mean_decodes, mean_seconds = self._sum_decodes / self._sum_weights, self._sum_seconds / self._sum_weights
        variance = self._sum_decodes_squared / self._sum_weights - mean_decodes * mean_decodes
        if variance > 0.25:  # else all had about as many: the price stays what it was
            covariance = self._sum_decodes_seconds / self._sum_weights - mean_decodes * mean_seconds
            self._decode_price = min(max(covariance / variance, 0.0), mean_seconds / mean_decodes)
        self._decode_price = min(self._decode_price, mean_seconds / mean_decodes)
        self._constant = mean_seconds - self._decode_price * mean_decodes

    def seconds(self, num_decodes: int, num_prompt_tokens: int) -> float:
        """What a step with these takes; 0 before enough is known."""
        if not self.is_known:
            return 0.0
        return self._constant + self._decode_price * num_decodes + self._prompt_price * num_prompt_tokens

    def prompt_tokens_within(self, seconds: float, num_decodes: int) -> int | None:
        """Prompt tokens that a step beside `num_decodes` decodes can have to take `seconds` at most, 0 or more.

        None: not enough is known yet.
        """
        if not self.is_known or self._prompt_price <= 0:
            return None
        return max(0, int((seconds - self.seconds(num_decodes, 0)) / self._prompt_price))
