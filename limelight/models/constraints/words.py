"""Words that must not occur: for the text so far, the tokens that would complete one of them.

What counts is the text, not how it is cut into tokens, so a word cannot come in through another cut, or as part of
a longer word. The text is followed as Knuth, Morris and Pratt do: by the longest beginning of the word that it ends
with; the shorter ones are that one's borders.
"""

from collections.abc import Sequence

import numpy as np

from limelight.models.constraints.token_table import Mask, TokenIds, TokenTable


class WatchedWord:
    """A word, as bytes, and which tokens complete it. Shared by the choices of a request.

    Args:
        word: not empty.
    """

    def __init__(self, word: bytes, table: TokenTable) -> None:
        self.word = word
        self._table = table
        self._borders = _borders(word)
        self._holding = table.containing(word)
        self._completing: dict[int, TokenIds] = {}

    def progress(self, matched: int, text: bytes) -> int:
        """How much of the word the text ends with when `text` follows where it ended with `matched` bytes of it."""
        word, borders = self.word, self._borders
        for byte in text:
            while matched and (matched == len(word) or word[matched] != byte):
                matched = borders[matched - 1]
            if word[matched] == byte:
                matched += 1
        return matched

    def completing(self, matched: int) -> TokenIds:
        """Ids of the tokens behind which the word has occurred, for a text that ends with `matched` bytes of it."""
        known = self._completing.get(matched)
        if known is None:
            found, length = [self._holding], matched
            while length:
                if length < len(self.word):
                    found.append(self._table.beginning_with(self.word[length:]))
                length = self._borders[length - 1]
            known = self._completing[matched] = np.unique(np.concatenate(found))
        return known


class WordFilter:
    """The words that one choice must avoid.

    Args:
        hidden_token_ids: tokens that leave nothing in the text.
    """

    def __init__(self, words: Sequence[WatchedWord], table: TokenTable, hidden_token_ids: frozenset[int]) -> None:
        self._words = words
        self._tokens = table.tokens
        self._hidden = hidden_token_ids
        self._matched = [0] * len(words)

    def advance(self, token_id: int) -> None:
        """Take in the next token of the output."""
        if token_id not in self._hidden:
            text = self._tokens[token_id]
            self._matched = [
                word.progress(matched, text) for word, matched in zip(self._words, self._matched, strict=True)
            ]

    def restrict(self, mask: Mask) -> None:
        """Take out the tokens that would complete a word."""
        for word, matched in zip(self._words, self._matched, strict=True):
            mask[word.completing(matched)] = False


def watched_form(word: str) -> str:
    """What is looked for: the word without white space before it, so that it is found with and without."""
    return word.lstrip() or word


def _borders(word: bytes) -> tuple[int, ...]:
    """For each beginning of the word, the length of the longest shorter one that it also ends with."""
    borders = [0] * len(word)
    length = 0
    for place in range(1, len(word)):
        while length and word[place] != word[length]:
            length = borders[length - 1]
        if word[place] == word[length]:
            length += 1
        borders[place] = length
    return tuple(borders)
