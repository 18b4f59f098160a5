"""The bytes of a model's tokens, in an order in which those with a given beginning or content are found fast."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from limelight.models.loaded_model import Vocabulary

TokenIds = NDArray[np.int64]
"""[tokens]"""
Mask = NDArray[np.bool_]
"""[vocab], True for a token that may be drawn."""

NO_TOKENS: TokenIds = np.empty(0, np.int64)
_BITS_PER_WORD = 32


class TokenTable:
    """All tokens of a model. Immutable, so any thread may use it.

    Args:
        vocab_size: number of logits; ids that the vocabulary lacks have no bytes.

    Attributes:
        tokens: bytes by id, those of special tokens as they are written.
        special_token_ids: control tokens.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.tokens = [vocabulary.token_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = frozenset(filter(vocabulary.is_special, range(vocab_size)))
        order = sorted(range(vocab_size), key=self.tokens.__getitem__)
        self._ids = np.array(order, np.int64)
        self._sorted = [self.tokens[token_id] for token_id in order]
        self._joined = np.frombuffer(b"".join(self.tokens), np.uint8)
        self._ends = np.cumsum([len(token) for token in self.tokens])

    def beginning_with(self, text: bytes) -> TokenIds:
        """Ids of the tokens that begin with `text`, which is not empty."""
        start = bisect_left(self._sorted, text)
        after = _next_after(text)
        end = len(self._sorted) if after is None else bisect_left(self._sorted, after, start)
        return self._ids[start:end]

    def containing(self, text: bytes) -> TokenIds:
        """Ids of the tokens that hold `text`, which is not empty, anywhere."""
        places = np.flatnonzero(self._joined[: max(0, len(self._joined) - len(text) + 1)] == text[0])
        for offset, byte in enumerate(text[1:], start=1):
            places = places[self._joined[places + offset] == byte]
        token_ids = np.searchsorted(self._ends, places, side="right")
        return np.unique(token_ids[places + len(text) <= self._ends[token_ids]])

    def within(self, text: bytes) -> TokenIds:
        """Ids of the tokens that `text` begins with."""
        found: list[int] = []
        for length in range(1, len(text) + 1):
            place = bisect_left(self._sorted, text[:length])
            while place < len(self._sorted) and self._sorted[place] == text[:length]:
                found.append(int(self._ids[place]))
                place += 1
        return np.array(found, np.int64)

    def spelling(self, text: bytes) -> tuple[int, ...]:
        """Tokens whose bytes joined are `text`: at each place the longest that fits.

        Raises:
            ValueError: no token fits.
        """
        spelt = []
        while text:
            fitting = self.within(text)
            if not len(fitting):
                raise ValueError(f"no token of the model begins {text!r}")
            spelt.append(int(fitting[-1]))
            text = text[len(self.tokens[spelt[-1]]) :]
        return tuple(spelt)

    def mask(self, token_ids: Sequence[int]) -> Mask:
        """A mask that allows these tokens only."""
        mask = np.zeros(self.vocab_size, np.bool_)
        mask[list(token_ids)] = True
        return mask


def packed(mask: Mask) -> bytes:
    """A mask in the form in which it crosses threads (`TokenMasks`)."""
    bits = np.packbits(mask, bitorder="little").tobytes()
    width = -(-len(mask) // _BITS_PER_WORD) * (_BITS_PER_WORD // 8)
    return bits.ljust(width, b"\0")


def unpacked(bits: bytes, vocab_size: int) -> Mask:
    """The reverse of `packed`, in memory of its own."""
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=vocab_size, bitorder="little").view(np.bool_)


def _next_after(text: bytes) -> bytes | None:
    """The smallest text that is larger than all that begin with `text`; None if there is none."""
    kept = text.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None
