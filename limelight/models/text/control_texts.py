"""Control tokens that stand written out in a conversation: kept apart from those that the chat template writes.

A client's text may hold `<|im_end|>` or `<start_of_turn>`, by accident or to pass for somebody else. It is that text,
and must not become the control token. So before the template sees the conversation, a mark goes into every such text,
a character that occurs nowhere in it. The prompt is then encoded with the marks, which break the text, and the tokens
that stand for marks alone are dropped.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec
from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import WordLevel

from limelight.generation import ChatPrompt

MARKS = tuple(chr(0xF1A00 + number) for number in range(256))
"""From a private use area: no tokenizer knows them, so each becomes tokens of its own."""


@runtime_checkable
class MarksControls(Protocol):
    """A `Vocabulary` that can tell written control tokens from real ones."""

    def mark_controls(self, text: str, mark: str) -> str:
        """`text` with `mark` in every control token that is written out in it."""
        ...

    def encode_marked(self, text: str, mark: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of `text` without its marks; what they were put into is plain text. Raises as `encode`."""
        ...


def marked_conversation(prompt: ChatPrompt, vocabulary: MarksControls) -> tuple[ChatPrompt, str | None]:
    """The conversation with marks in its written control tokens, and the mark; None: it has none of them."""
    given = {"messages": prompt.messages, "tools": prompt.tools, "template_arguments": prompt.template_arguments}
    texts = list(_texts(given))
    mark = next((mark for mark in MARKS if not any(mark in text for text in texts)), None)
    if mark is None or all(vocabulary.mark_controls(text, mark) == text for text in set(texts)):
        return prompt, None
    marked = _mapped(given, lambda text: vocabulary.mark_controls(text, mark))
    return msgspec.structs.replace(prompt, **marked), mark


class ControlFinder:
    """Finds the control tokens of a tokenizer in texts, by the tokenizer's own rules.

    Args:
        added_tokens: all that it matches as a whole.
    """

    def __init__(self, added_tokens: Mapping[int, AddedToken]) -> None:
        controls = [token for token in added_tokens.values() if token.special]
        self._first_letters = frozenset(token.content[:1] for token in controls)
        self._names = frozenset(token.content for token in controls if len(token.content) > 1)
        self._finder = Tokenizer(WordLevel({"": 0}, unk_token=""))
        self._finder.add_tokens([token for token in added_tokens.values() if not token.special])
        self._finder.add_special_tokens(controls)

    def marked(self, text: str, mark: str) -> str:
        """See `MarksControls`."""
        if not any(letter in text for letter in self._first_letters):
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


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON-like value, the names of fields included."""
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in value.items():
                yield from _texts(key)
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_mapped(item, change) for item in value)
    return value
