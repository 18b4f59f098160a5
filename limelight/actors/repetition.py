"""Finds a choice that has begun to repeat itself. Pure."""

from collections import deque
from itertools import islice

from limelight.generation import RepetitionDetection


class RepetitionDetector:
    """Says when the last tokens are one pattern, `min_count` times or more, with nothing in between.

    A pattern of p tokens stands c times at the end if the last p * (c - 1) tokens each equal the one p before them, so
    a count for each p is enough. A token costs time in proportion to `max_pattern_size`, whatever came before.
    """

    def __init__(self, wanted: RepetitionDetection) -> None:
        self._shortest = max(wanted.min_pattern_size, 1)
        self._min_count = wanted.min_count
        self._latest: deque[int] = deque(maxlen=wanted.max_pattern_size)  # newest first
        self._num_equal = [0] * (wanted.max_pattern_size + 1)

    def feed(self, token_id: int) -> bool:
        """Take the next token; whether the tokens so far end in a repetition."""
        found = False
        for size, earlier in enumerate(islice(self._latest, self._shortest - 1, None), start=self._shortest):
            self._num_equal[size] = self._num_equal[size] + 1 if earlier == token_id else 0
            found = found or self._num_equal[size] >= size * (self._min_count - 1)
        self._latest.appendleft(token_id)
        return found
