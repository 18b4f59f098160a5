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
    """Where each short run of tokens of a sequence last occurred.

    It learns a sequence at a constant cost a token (about 3 us and 300 bytes), so whoever calls it says how many tokens
    at once: a long prompt in one go would hold the event loop up.
    """

    __slots__ = ("_last_end", "_num_learnt", "_settings")

    def __init__(self, settings: Speculation) -> None:
        self._settings = settings
        self._last_end: dict[tuple[int, ...], int] = {}
        self._num_learnt = 0

    def learn(self, token_ids: Sequence[int], most: int) -> int:
        """Enter at most `most` more tokens of the sequence; returns how many.

        Runs end before the last token: those at the end are what is looked up.

        Args:
            token_ids: all tokens of the sequence; those of earlier calls must not have changed.
        """
        settings, first = self._settings, self._num_learnt + 1
        stop = max(first, min(len(token_ids), first + most))
        for end in range(first, stop):
            for length in range(settings.shortest, min(settings.longest, end) + 1):
                self._last_end[tuple(token_ids[end - length : end])] = end
        self._num_learnt = stop - 1
        return stop - first

    def guess(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """What followed the last occurrence of the sequence's last tokens; at most `most` tokens, none if it is new.

        None, too, as long as not all of `token_ids` have been learnt.

        Where the earlier occurrence reaches into the last tokens themselves, the text repeats with that period, and so
        does the guess.
        """
        if self._num_learnt < len(token_ids) - 1:
            return ()
        most = min(most, self._settings.num_tokens)
        for length in range(min(self._settings.longest, len(token_ids) - 1), self._settings.shortest - 1, -1):
            end = self._last_end.get(tuple(token_ids[-length:]))
            if end is not None:
                period = len(token_ids) - end
                return tuple(token_ids[end + offset % period] for offset in range(most))
        return ()
