"""Where control tokens stand written out in a text, by the tokenizer's own rules; see `control_texts.py`."""

from collections.abc import Mapping

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import WordLevel

BEGINNING = 4
"""Characters of a control token that are looked for first: enough to pass over what only has brackets."""


class ControlFinder:
    """Finds the control tokens of a tokenizer in texts, by the tokenizer's own rules.

    Args:
        added_tokens: all that it matches as a whole.
    """

    def __init__(self, added_tokens: Mapping[int, AddedToken]) -> None:
        controls = [token for token in added_tokens.values() if token.special]
        self._beginnings = frozenset(token.content[:BEGINNING] for token in controls)
        self._names = frozenset(token.content for token in controls if len(token.content) > 1)
        self._finder = Tokenizer(WordLevel({"": 0}, unk_token=""))
        self._finder.add_tokens([token for token in added_tokens.values() if not token.special])
        self._finder.add_special_tokens(controls)

    def marked(self, text: str, mark: str) -> str:
        """See `MarksControls`."""
        if not any(beginning in text for beginning in self._beginnings):
            return text
        while True:
            (found,) = self._finder.encode_batch([text], add_special_tokens=False)
            spans = [
                (start, end)
                for (start, end), name in zip(found.offsets, found.tokens, strict=True)
                if name in self._names
            ]
            if not spans:
                return text
            pieces, done = [], 0
            for start, end in spans:
                name = text[start:end]
                inside = start + len(name) - len(name.lstrip()) + 1  # a token may take the spaces before it
                pieces += [text[done:inside], mark]
                done = inside
            text = "".join([*pieces, text[done:]])


def without_marks(text: str, mark: str, encoding: Encoding) -> list[int] | None:
    """The tokens that stand for more than marks; None: one stands for a mark and for text."""
    kept: list[int] = []
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        covered = text[start:end]
        if mark not in covered:
            kept.append(token_id)
        elif covered.strip(mark):
            return None
    return kept
