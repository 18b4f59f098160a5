"""Guesses the next tokens of a sequence by looking its last ones up in what came before (prompt lookup, Saxena 2023).

Good where answers repeat their prompt: summaries, code edits, extraction. A guess is only ever a proposal: the model
computes all guessed positions in one pass and keeps those that it would have drawn itself.
"""

from collections.abc import Sequence

import msgspec


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """How much is guessed.

    Attributes:
        num_tokens: most tokens guessed at once.
        longest, shortest: how many last tokens must have occurred before, the longest match being preferred.
    """

    num_tokens: int
    longest: int
    shortest: int


class PromptLookup:
    """Where each short run of tokens of a sequence last occurred; grows with the sequence, at constant cost a token."""

    __slots__ = ("_last_end", "_num_indexed", "_settings")

    def __init__(self, settings: Speculation) -> None:
        self._settings = settings
        self._last_end: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def guess(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """What followed the last occurrence of the sequence's last tokens; at most `most` tokens, none if it is new.

        Args:
            token_ids: all tokens of the sequence; those of earlier calls must not have changed.

        Where the earlier occurrence reaches into the last tokens themselves, the text repeats with that period, and so
        does the guess.
        """
        self._index(token_ids)
        most = min(most, self._settings.num_tokens)
        for length in range(min(self._settings.longest, len(token_ids) - 1), self._settings.shortest - 1, -1):
            end = self._last_end.get(tuple(token_ids[-length:]))
            if end is not None:
                period = len(token_ids) - end
                return tuple(token_ids[end + offset % period] for offset in range(most))
        return ()

    def _index(self, token_ids: Sequence[int]) -> None:
        """Enter all runs that end before the last token: the last ones are what is looked up."""
        for end in range(self._num_indexed + 1, len(token_ids)):
            for length in range(self._settings.shortest, min(self._settings.longest, end) + 1):
                self._last_end[tuple(token_ids[end - length : end])] = end
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)
