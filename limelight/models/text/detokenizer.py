"""Token ids of one choice -> text that is safe to send. Owns the bytes of a character that is not complete yet.

It sees output tokens only, so nothing of the prompt can ever reach the text. Several bytes that are no UTF-8 become
U+FFFD exactly as in `bytes.decode("utf-8", errors="replace")` of the whole output, wherever the tokens split them.
"""

import codecs
from collections.abc import Sequence

from limelight.models.loaded_model import Vocabulary

SURROGATE, FIRST_OF_SURROGATE = b"\xed", b"\xa0"
"""Bytes that begin the code of half a character. UTF-8 has none, but Python's decoder waits for a third byte."""


class Detokenizer:
    """Incremental decoder of one choice: joined pieces equal the whole text, whatever the split into tokens.

    One rule for the end, streamed or not: an output that stops inside a character (its bytes so far could still have
    become one) loses that unfinished character. So the text after k tokens is always a prefix of the text after more.

    Args:
        skip_special_tokens: leave control tokens out of the text. They don't interrupt a character either.
        shown: control tokens that stay in it all the same.
    """

    __slots__ = ("_is_special", "_pending", "_skip_special_tokens", "_token_bytes")

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool, shown: frozenset[int] = frozenset()) -> None:
        self._token_bytes = vocabulary.token_bytes
        self._is_special = vocabulary.is_special
        if shown:
            self._is_special = lambda token_id: token_id not in shown and vocabulary.is_special(token_id)
        self._skip_special_tokens = skip_special_tokens
        self._pending = b""

    @property
    def num_pending_bytes(self) -> int:
        """Bytes, 0 to 3, of a character that further tokens may complete."""
        return len(self._pending)

    def is_hidden(self, token_id: int) -> bool:
        """Whether the token is left out of the text."""
        return self._skip_special_tokens and self._is_special(token_id)

    def feed_whole(self, token_ids: Sequence[int]) -> str | None:
        """The text of several tokens, if they neither begin nor end inside a character; else None, and nothing is fed.

        Bytes that are no UTF-8 count as unfinished here, whose replacements depend on what follows.
        """
        if self._pending:
            return None
        if self._skip_special_tokens:
            pieces = [self._token_bytes(token_id) for token_id in token_ids if not self._is_special(token_id)]
        else:
            pieces = [self._token_bytes(token_id) for token_id in token_ids]
        try:
            return b"".join(pieces).decode()
        except UnicodeDecodeError:
            return None

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes: "" while inside a character, and for tokens without text."""
        if self.is_hidden(token_id):
            return ""
        raw = self._pending + self._token_bytes(token_id)
        text, num_used = codecs.utf_8_decode(raw, "replace", False)
        self._pending = raw[num_used:]
        if self._pending[:1] == SURROGATE and self._pending[1:] >= FIRST_OF_SURROGATE:
            text += self._pending.decode("utf-8", "replace")
            self._pending = b""
        return text

    def flush(self) -> str:
        """Ends the choice and returns what is left to send: always "", as an unfinished character is dropped."""
        self._pending = b""
        return ""
